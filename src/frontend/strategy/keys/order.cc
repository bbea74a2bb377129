// Reads the directive `order`: a program, explicit lists, or a pipeline file.
#include <filesystem>

#include "directives.h"
#include "order_cells.h"
#include "piper/base/yaml.h"
#include "print.h"

namespace piper::fields {
namespace {

// ---- program ------------------------------------------------------------------------------------

// Holds the lines of a program, and where they are in the file.
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

  // A text param that is a whole line may have several, which are where the param's do.
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

  // Inserts params within a line: its columns are lost.
  Status insert(const std::string& code, SourceSpan at) {
    yaml::Node node;
    node.kind = yaml::Node::Kind::kScalar;
    node.text = code;
    node.at = node.inside = at;
    PIPER_ASSIGN(std::string line, insert_params(node, scope_));
    if (line.find('\n') != line.npos)
      return fail(std::move(at), "a text of several lines is inserted into a line")
          .with_note("help: it needs a line of its own");
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

Status read_program(const Field&, const yaml::Entry& entry, const Reading& reading, Order& order) {
  const yaml::Node& text = entry.value;
  const Scope& scope = reading.scope;
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

std::string print_program_of(const Field&, const Order& order) {
  if (order.program.empty()) return "";
  const auto program = program::parse(order);
  PIPER_CHECK(program.ok(), "a program that was read is none");
  std::string text = "|";
  for (const std::string& line : split_text(print_program(*program, order.bound), '\n'))
    if (!line.empty()) text += "\n        " + line;
  return text;
}

// ---- lists, csv ---------------------------------------------------------------------------------

Status read_lists(const Field&, const yaml::Entry& entry, const Reading& reading, Order& order) {
  const yaml::Node& lists = entry.value;
  if (!lists.is(yaml::Node::Kind::kList)) return wrong_type(lists, "a list of texts, one a device");
  for (const yaml::Node& item : lists.items) {
    if (!item.is(yaml::Node::Kind::kScalar)) return wrong_type(item, "a device's tasks in order");
    PIPER_ASSIGN(const yaml::Node text, with_texts(item, reading.scope));
    PIPER_ASSIGN(auto row, order_cells::parse_list(text.text, text.inside));
    order.rows.push_back(std::move(row));
  }
  return order_cells::check_rows(order.rows);
}

std::string print_lists(const Field&, const Order& order) {
  std::string text;
  for (const std::vector<OrderCell>& row : order.rows) {
    std::string cells;
    for (const OrderCell& cell : row) {
      if (!cells.empty() && cells.back() != '&') cells += ' ';
      cells += order_cells::name(cell) + (cell.apart ? "&&" : cell.paired ? "&" : "");
    }
    text += "\n        - " + yaml::in_quotes(cells);
  }
  return text;
}

// Reads a pipeline file, whose path is relative to the strategy file.
Status read_csv(const Field&, const yaml::Entry& entry, const Reading& reading, Order& order) {
  const SourceSpan& at = entry.value.at;
  PIPER_ASSIGN(const std::string name, read_text(entry.value, reading.scope));
  const auto path = std::filesystem::path(at.file).parent_path() / name;
  Result<std::string> csv = read_text_file(path.string(), int64_t{64} << 20);
  if (!csv) {
    csv.error().at = at;
    return std::move(csv.error());
  }
  PIPER_ASSIGN(OrderFile file, parse_order_csv(*csv, path.string(), order.dialect));
  for (auto& row : file.rows)
    std::erase_if(row, [](const OrderCell& cell) { return !order_cells::is_compute(cell); });
  order.rows = std::move(file.rows);
  return ok_status();
}

// ---- policy -------------------------------------------------------------------------------------

Status read_limit(const Field&, const yaml::Entry& entry, const Reading& reading, Policy& policy) {
  static const std::vector<std::string> kFree = {"r", "P", "M"};
  PIPER_ASSIGN(policy.in_flight, read_expression(entry.value, reading.scope, kFree));
  policy.in_flight_at = entry.value.at;
  return ok_status();
}

constexpr Word kPasses[] = {{"F"}, {"B"}, {"BI"}, {"BW"}};
constexpr Word kCosts[] = {word("model", false), word("unit", true)};
constexpr Word kGoals[] = {word("end", false), word("span", true)};
// What BI and BW are not said to take a forward does, and a whole backward takes both.
Status check_times(const Fields& map, PassTimes& times) {
  if (!map["BI"]) times.input_half = times.forward;
  if (!map["BW"]) times.weight_half = times.forward;
  if (!map["B"]) times.backward = times.input_half + times.weight_half;
  return ok_status();
}
Status check_costs(const Fields& map, const Reading&, PolicyCosts& costs) {
  return check_times(map, costs);
}
Status check_stage(const Fields& map, const Reading&, StageTimes& times) {
  times.at = map.at();
  return check_times(map, times);
}

Status read_stages(const Field&, const yaml::Entry& entry, const Reading& reading,
                   PolicyCosts& costs) {
  if (!entry.value.is(yaml::Node::Kind::kList)) return no_list(entry.value, "a list of stages");
  for (const yaml::Node& item : entry.value.items) {
    StageTimes times;
    PIPER_TRY(read_map(fields::object("stage_costs"), item, item.at, reading, &times));
    for (const StageTimes& before : costs.stages)
      if (before.stage == times.stage)
        return fail(item.at, "the times of stage {} are given twice", times.stage)
            .with_note(fmt::format("first at {}", yaml::place(before.at)));
    costs.stages.push_back(times);
  }
  return ok_status();
}
std::string print_times(const PassTimes& times) {
  return fmt::format("F: {}, B: {}, BI: {}, BW: {}", times.forward, times.backward,
                     times.input_half, times.weight_half);
}

template <class Times>
constexpr std::array<Field, 4> pass_fields() {
  return {
      {{"F", real(kPositive), kRequired, "The time of a forward of a microbatch, in any unit.",
        member<&Times::forward>},
       {"B", real(kPositive), kOptional,
        "The time of a whole backward. Default: BI and BW together.", member<&Times::backward>},
       {"BI", real(kNotNegative), kOptional,
        "The time of the input part of a backward. Default: F.", member<&Times::input_half>},
       {"BW", real(kNotNegative), kOptional,
        "The time of the weight part of a backward. Default: F.", member<&Times::weight_half>}}};
}
constexpr auto kPassTimes = pass_fields<PolicyCosts>();
constexpr auto kTimesOfStage = pass_fields<StageTimes>();
constexpr Field kStageCosts[] = {
    {"stage", integer(0), kRequired, "Number of the stage.", member<&StageTimes::stage>},
    kTimesOfStage[0],
    kTimesOfStage[1],
    kTimesOfStage[2],
    kTimesOfStage[3]};
constexpr Field kStatedCosts[] = {
    kPassTimes[0],
    kPassTimes[1],
    kPassTimes[2],
    kPassTimes[3],
    {"send", real(kNotNegative), kOptional, "The time of a message between devices. Default: 0.",
     member<&PolicyCosts::send>},
    {"stages", many("stage_costs"), kOptional, "Stages with other times.", custom<read_stages>},
};

Status read_costs(const Field& field, const yaml::Entry& entry, const Reading& reading,
                  Policy& policy) {
  if (entry.value.is(yaml::Node::Kind::kMap))
    return read_inside(field, entry, reading, &policy.costs.emplace());
  PIPER_ASSIGN(const int64_t word, read_word(field, entry.value, reading));
  policy.unit_costs = word != 0;
  return ok_status();
}

std::string print_costs(const Field&, const Policy& policy) {
  if (!policy.costs) return policy.unit_costs ? "unit" : "";
  std::string text = fmt::format("{{{}, send: {}", print_times(*policy.costs), policy.costs->send);
  for (const StageTimes& times : policy.costs->stages)
    text += fmt::format("{}{{stage: {}, {}}}", text.back() == '}' ? ", " : ", stages: [",
                        times.stage, print_times(times));
  return text + (policy.costs->stages.empty() ? "}" : "]}");
}

constexpr Field kPolicy[] = {
    {"prefer", some_of(kPasses), kRequired,
     "Passes in order of preference: [B, F, BW]; naming BI or BW splits the backward.",
     member<&Policy::prefer>},
    {"in_flight", kInteger, kOptional,
     "Limit on the chunks whose activations a device holds; an expression over r, P, M.",
     custom<read_limit, print_member<&Policy::in_flight>>},
    {"memory", kBytes, kOptional, "Limit on the bytes of activations that a device holds.",
     member<&Policy::memory>},
    {"costs", text_or("costs", kCosts), kOptional,
     "model: operations and bytes of the model (default); unit: one unit for each part; or a map "
     "of times.",
     custom<read_costs, print_costs>},
    {"goal", one_of(kGoals), kOptional,
     "What to minimize: end, the time until all devices have ended (default); span, the longest "
     "time that a device is at work.",
     member<&Policy::span>},
};

// ---- Checks -------------------------------------------------------------------------------------

// Rows belong to the coordinates of the axis, one each.
Status check_row_count(const Reading& reading, const Order& order, const SourceSpan& at) {
  int64_t coordinates = 1;
  for (const std::string& each : order.each) {
    if (std::ranges::count(reading.scope.failed, each) > 0) return ok_status();
    const auto axis = std::ranges::find(reading.strategy.mesh, each, &MeshAxis::name);
    if (axis == reading.strategy.mesh.end()) return ok_status();
    coordinates *= axis->size;
  }
  if (order.each.empty() || coordinates == std::ssize(order.rows)) return ok_status();
  return fail(at, "{} rows, but the ax{} '{}' ha{} {} coordinates", order.rows.size(),
              order.each.size() == 1 ? "is" : "es", join(order.each, "', '"),
              order.each.size() == 1 ? "s" : "ve", coordinates);
}

Status check_order(const Fields& map, const Reading& reading, Order& order) {
  const auto& orders = reading.strategy.orders;
  if (!orders.empty())
    return fail(map.at(), "the order is given twice")
        .with_note(fmt::format("first at {}", yaml::place(orders[0].at)));
  if (map["dialect"] && !map["csv"])
    return fail(map.key_at("dialect"), "'dialect' belongs to 'csv'");
  std::vector<const char*> forms;
  for (const char* form : {"program", "lists", "csv", "policy"})
    if (map[form]) forms.push_back(form);
  if (forms.size() != 1)
    return fail(forms.empty() ? map.at() : map.key_at(forms[1]),
                "'order' has exactly one of the keys program, lists, csv, policy");
  order.bound = reading.scope.integers;
  order.micro = reading.strategy.micro_name();
  if (order.rows.empty() && !map["lists"]) return ok_status();
  return check_row_count(reading, order, map.key_at(forms[0]));
}

constexpr Word kDialects[] = {word("old", CsvDialect::kOld), word("new", CsvDialect::kNew)};
constexpr Field kOrderKeys[] = {
    {"each", kAxes, kOptional,
     "Mesh axes; the program runs for each coordinate r of them. Default: those that place uses.",
     member<&Order::each>},
    {"program", kProgram, kOptional, "The order program.", custom<read_program, print_program_of>},
    {"lists", kTexts, kOptional, "The tasks of each coordinate, in order: 0F0 0F1 3F0&3B0.",
     custom<read_lists, print_lists>},
    {"dialect",
     one_of(kDialects),
     kOptional,
     "Letters of the csv: old (B, W, BW) or new (I, W, B).",
     {read_member<&Order::dialect>}},
    {"csv", kText, kOptional,
     "A PyTorch pipeline file, relative to this file, with a row for each coordinate.",
     custom<read_csv>},
    {"policy", one("policy"), kOptional, "List scheduling over the cost model.",
     child<&Order::policy>},
    {"where", kWhere, kUnsupported},
};
constexpr Object kOrderParts[] = {{"policy", kPolicy},
                                  {"costs", kStatedCosts, checked<check_costs>},
                                  {"stage_costs", kStageCosts, checked<check_stage>}};

}  // namespace

Directive order_directive() {
  return directive<&Strategy::orders>(block("order", kOrderKeys, checked<check_order>),
                                      "In which order each device works.", kOrderParts);
}

}  // namespace piper::fields
