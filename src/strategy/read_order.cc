// order: a program, explicit lists, or a pipeline file.
#include <algorithm>
#include <filesystem>

#include "order_cells.h"
#include "program.h"
#include "sections.h"

namespace piper {
namespace {

using fields::Fields;

// Lines of a program, and where they stand.
class Lines {
 public:
  Lines(Order& order, const Scope& scope) : order_(order), scope_(scope) {}

  Status add(const yaml::Node& program) {
    const std::vector<std::string> lines = split_text(program.text, '\n');
    const std::vector<SourceSpan> places = places_of(lines, program.inside);
    for (size_t i = 0; i < lines.size(); ++i) PIPER_TRY(add(lines[i], places[i]));
    return ok_status();
  }

 private:
  // Of a text with escapes no line has columns of its own: a length of -1.
  static std::vector<SourceSpan> places_of(const std::vector<std::string>& lines,
                                           const SourceSpan& at) {
    const bool exact = at.length == yaml::count_columns(lines.front());
    std::vector<SourceSpan> places(lines.size(), at);
    for (size_t i = 0; i < lines.size(); ++i) {
      places[i].length = exact ? yaml::count_columns(lines[i]) : -1;
      if (exact) places[i].line += static_cast<int>(i);
    }
    return places;
  }

  // A text param that is a whole line may have several, which stand where the param's do.
  Status add(const std::string& line, const SourceSpan& at) {
    const std::string code = line.substr(0, line.find('#'));
    const size_t indent = std::min(code.find_first_not_of(' '), code.size());
    const size_t end = code.find_last_not_of(' ') + 1;
    for (const std::string_view name : inserted_names(code)) {
      const Scope::Text* text = scope_.text(name);
      if (text == nullptr) continue;
      const std::string item = code.substr(indent, end - indent);
      if (item != fmt::format("${}", name) && item != fmt::format("${{{}}}", name))
        return insert(code, at);
      scope_.used.emplace(name);
      add_all(*text, indent);
      return ok_status();
    }
    push(line, at);
    return ok_status();
  }

  void add_all(const Scope::Text& text, size_t indent) {
    const std::vector<std::string> lines = split_text(text.value, '\n');
    std::vector<SourceSpan> places = places_of(lines, text.inside);
    for (size_t i = 0; i < lines.size(); ++i) {
      if (places[i].length >= 0) {
        places[i].column -= static_cast<int>(indent);
        places[i].length += static_cast<int>(indent);
      }
      push(std::string(indent, ' ') + lines[i], places[i]);
    }
  }

  // Params within a line: its columns are lost.
  Status insert(const std::string& code, SourceSpan at) {
    yaml::Node node;
    node.kind = yaml::Node::Kind::kScalar;
    node.text = code;
    node.at = node.inside = at;
    PIPER_ASSIGN(std::string line, insert_params(node, scope_));
    if (line.find('\n') != line.npos)
      return fail(std::move(at), "a text of several lines is inserted into a line")
          .with_note("help: it stands on a line of its own");
    at.length = -1;
    push(line, at);
    return ok_status();
  }

  void push(const std::string& line, const SourceSpan& at) {
    if (!order_.lines.empty()) order_.program += '\n';
    order_.program += line;
    order_.lines.push_back(at);
  }

  Order& order_;
  const Scope& scope_;
};

Status read_program(const yaml::Node& text, const Scope& scope, Order& order) {
  if (!text.is(yaml::Node::Kind::kScalar)) return wrong_type(text, "an order program");
  PIPER_TRY(Lines(order, scope).add(text));
  PIPER_ASSIGN(const program::Program program, program::parse(order));
  std::set<std::string, std::less<>> names;
  program::collect_names(program, names);
  for (const Scope::Text& param : scope.texts)
    if (names.contains(param.name)) return no_integer(param, text.at, scope);
  scope.used.merge(names);
  std::vector<std::string> known = scope.integer_names();
  known.insert(known.end(), {"r", "P", "M"});
  Status named = program::check_names(program, std::move(known));
  if (named) return named;
  return std::move(named).error().with_note(
      "r is the device's coordinate, P the size of the axis, M the number of microbatches");
}

Status read_lists(const yaml::Node& lists, const Scope& scope, Order& order) {
  if (!lists.is(yaml::Node::Kind::kList)) return wrong_type(lists, "a list of texts, one a device");
  for (const yaml::Node& item : lists.items) {
    if (!item.is(yaml::Node::Kind::kScalar)) return wrong_type(item, "a device's tasks in order");
    PIPER_ASSIGN(const yaml::Node text, with_texts(item, scope));
    PIPER_ASSIGN(auto row, order_cells::parse_list(text.text, text.inside));
    order.rows.push_back(std::move(row));
  }
  return order_cells::check_rows(order.rows);
}

Result<CsvDialect> read_dialect(const Fields& map, const Scope& scope) {
  const yaml::Node* node = map["dialect"];
  if (!node) return CsvDialect::kDetect;
  if (!map["csv"]) return fail(map.key_at("dialect"), "'dialect' belongs to 'csv'");
  PIPER_ASSIGN(const std::string name, read_text(*node, scope));
  if (name == "old") return CsvDialect::kOld;
  if (name == "new") return CsvDialect::kNew;
  const std::vector<std::string> names = {"old", "new"};
  return fail(node->at, "unknown dialect {}{}", yaml::shown(name), did_you_mean(name, names))
      .with_note("old: B, W and BW for the halves of a backward and the whole; new: I, W and B");
}

// A pipeline file, relative to the strategy file.
Status read_csv(const Fields& map, const Scope& scope, Order& order) {
  PIPER_ASSIGN(const std::string name, read_text(*map["csv"], scope));
  PIPER_ASSIGN(const CsvDialect dialect, read_dialect(map, scope));
  const auto path = std::filesystem::path(map["csv"]->at.file).parent_path() / name;
  Result<std::string> csv = read_text_file(path.string(), int64_t{64} << 20);
  if (!csv) {
    csv.error().at = map["csv"]->at;
    return std::move(csv.error());
  }
  PIPER_ASSIGN(OrderFile file, parse_order_csv(*csv, path.string(), dialect));
  for (auto& row : file.rows)
    std::erase_if(row, [](const OrderCell& cell) { return !order_cells::is_compute(cell); });
  order.rows = std::move(file.rows);
  return ok_status();
}

Status read_prefer(const yaml::Node& node, const Scope& scope, Policy& policy) {
  static const std::vector<std::string> kPasses = {"F", "B", "BI", "BW"};
  if (node.is(yaml::Node::Kind::kMap)) return wrong_type(node, "a list of passes");
  const bool is_list = node.is(yaml::Node::Kind::kList);
  for (const yaml::Node& item : is_list ? std::span(node.items) : std::span(&node, 1)) {
    PIPER_ASSIGN(const std::string pass, read_text(item, scope));
    if (std::find(kPasses.begin(), kPasses.end(), pass) == kPasses.end())
      return fail(item.at, "unknown pass {}{}", yaml::shown(pass), did_you_mean(pass, kPasses))
          .with_note("the passes are F, B, BI and BW");
    if (std::find(policy.prefer.begin(), policy.prefer.end(), pass) != policy.prefer.end())
      return fail(item.at, "the pass '{}' is there twice", pass);
    policy.prefer.push_back(pass);
  }
  return ok_status();
}

Status read_policy(const yaml::Node& node, const SourceSpan& at, const Scope& scope, Order& order) {
  PIPER_ASSIGN(const Fields map, fields::read(node, at, "policy"));
  Policy policy;
  policy.at = at;
  PIPER_TRY(read_prefer(*map["prefer"], scope, policy));
  if (const yaml::Node* limit = map["in_flight"]) {
    static const std::vector<std::string> kFree = {"r", "P", "M"};
    PIPER_ASSIGN(policy.in_flight, read_expression(*limit, scope, kFree));
    policy.in_flight_at = limit->at;
  }
  if (const yaml::Node* memory = map["memory"]) {
    PIPER_ASSIGN(policy.memory, read_bytes(*memory, scope));
  }
  if (const yaml::Node* costs = map["costs"]) {
    const std::vector<std::string> names = {"model", "unit"};
    PIPER_ASSIGN(const std::string name, read_text(*costs, scope));
    if (std::find(names.begin(), names.end(), name) == names.end())
      return fail(costs->at, "unknown costs {}{}", yaml::shown(name), did_you_mean(name, names))
          .with_note(
              "model: operations and bytes; unit: one for a forward and each half of a "
              "backward");
    policy.unit_costs = name == "unit";
  }
  order.policy = std::move(policy);
  return ok_status();
}

// Rows belong to the coordinates of the axis, one each.
Status check_row_count(const Strategy& out, const Scope& scope, const Order& order,
                       const SourceSpan& at) {
  if (std::find(scope.failed.begin(), scope.failed.end(), order.each) != scope.failed.end())
    return ok_status();
  for (const MeshAxis& axis : out.mesh) {
    if (axis.name != order.each) continue;
    if (axis.size == static_cast<int64_t>(order.rows.size())) return ok_status();
    return fail(at, "{} rows, but the axis '{}' has {} coordinates", order.rows.size(), axis.name,
                axis.size);
  }
  return ok_status();
}

}  // namespace

Status read_order(const Fields& map, const Scope& scope, const Names& names, Strategy& out) {
  if (!out.orders.empty()) {
    return fail(map.at(), "the order is given twice")
        .with_note(fmt::format("first at {}", yaml::place(out.orders[0].at)));
  }
  Order order;
  order.at = map.at();
  PIPER_ASSIGN(order.each, read_text(*map["each"], scope));
  PIPER_TRY(check_axis(order.each, map["each"]->at, names));
  order.bound = scope.integers;
  if (!out.splits.empty()) order.micro = out.splits[0].as;
  std::vector<const char*> forms;
  for (const char* form : {"program", "lists", "csv", "policy"})
    if (map[form]) forms.push_back(form);
  if (forms.size() != 1)
    return fail(forms.empty() ? map.at() : map.key_at(forms[1]),
                "'order' has exactly one of the keys program, lists, csv, policy");
  const std::string_view form = forms[0];
  if (form == "program") PIPER_TRY(read_program(*map["program"], scope, order));
  if (form == "lists") PIPER_TRY(read_lists(*map["lists"], scope, order));
  if (form == "csv") PIPER_TRY(read_csv(map, scope, order));
  if (form == "policy") PIPER_TRY(read_policy(*map["policy"], map.key_at("policy"), scope, order));
  if (!order.rows.empty() || form == "lists")
    PIPER_TRY(check_row_count(out, scope, order, map.key_at(form)));
  out.orders.push_back(std::move(order));
  return ok_status();
}

}  // namespace piper
