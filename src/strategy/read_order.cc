// order: a program, explicit lists, or a pipeline file.
#include <algorithm>
#include <filesystem>

#include "order_cells.h"
#include "program.h"
#include "sections.h"

namespace piper {
namespace {

using fields::Fields;

Status read_program(const yaml::Node& text, const Scope& scope, Order& order) {
  if (!text.is(yaml::Node::Kind::kScalar)) return wrong_type(text, "an order program");
  order.program = text.text;
  order.program_at = text.inside;
  PIPER_ASSIGN(const program::Program program, program::parse(order));
  std::vector<std::string> known = scope.integer_names();
  known.insert(known.end(), {"r", "P", "M"});
  return program::check_names(program, std::move(known));
}

Status read_lists(const yaml::Node& lists, Order& order) {
  if (!lists.is(yaml::Node::Kind::kList)) return wrong_type(lists, "a list of texts, one a device");
  for (const yaml::Node& item : lists.items) {
    if (!item.is(yaml::Node::Kind::kScalar)) return wrong_type(item, "a device's tasks in order");
    PIPER_ASSIGN(auto row, order_cells::parse_list(item.text, item.inside));
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

// A pipeline file, relative to the strategy file. Its text counts as the strategy's.
Status read_csv(const Fields& map, const Scope& scope, Order& order, std::string& text) {
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
  text += *csv;
  return ok_status();
}

Status read_prefer(const yaml::Node& node, Policy& policy) {
  static const std::vector<std::string> kPasses = {"F", "B", "BI", "BW"};
  if (node.is(yaml::Node::Kind::kMap)) return wrong_type(node, "a list of passes");
  const bool is_list = node.is(yaml::Node::Kind::kList);
  for (const yaml::Node& pass : is_list ? std::span(node.items) : std::span(&node, 1)) {
    const bool known = pass.is(yaml::Node::Kind::kScalar) &&
                       std::find(kPasses.begin(), kPasses.end(), pass.text) != kPasses.end();
    if (!known)
      return fail(pass.at, "unknown pass {}{}", yaml::shown(pass.text),
                  did_you_mean(pass.text, kPasses))
          .with_note("the passes are F, B, BI and BW");
    if (std::find(policy.prefer.begin(), policy.prefer.end(), pass.text) != policy.prefer.end())
      return fail(pass.at, "the pass '{}' is there twice", pass.text);
    policy.prefer.push_back(pass.text);
  }
  return ok_status();
}

Status read_policy(const yaml::Node& node, const SourceSpan& at, const Scope& scope, Order& order) {
  PIPER_ASSIGN(const Fields map, fields::read(node, at, "policy"));
  Policy policy;
  policy.at = at;
  PIPER_TRY(read_prefer(*map["prefer"], policy));
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
Status check_row_count(const Strategy& out, const Order& order, const SourceSpan& at) {
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
  if (form == "lists") PIPER_TRY(read_lists(*map["lists"], order));
  if (form == "csv") PIPER_TRY(read_csv(map, scope, order, out.text));
  if (form == "policy") PIPER_TRY(read_policy(*map["policy"], map.key_at("policy"), scope, order));
  if (!order.rows.empty() || form == "lists")
    PIPER_TRY(check_row_count(out, order, map.key_at(form)));
  out.orders.push_back(std::move(order));
  return ok_status();
}

}  // namespace piper
