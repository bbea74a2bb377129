// Sweeps: what one strategy comes to for each combination of values of its params.
#include <algorithm>
#include <filesystem>

#include "evaluate.h"
#include "piper/base/maps.h"
#include "piper/base/parallel.h"
#include "piper/base/yaml.h"

namespace piper {
namespace {

constexpr int64_t kMostRows = 4096;

Result<std::vector<std::string>> read_values(const yaml::Entry& param) {
  const auto is_value = [](const yaml::Node& node) { return node.is(yaml::Node::Kind::kScalar); };
  if (!param.value.is(yaml::Node::Kind::kList) || param.value.items.empty() ||
      !std::ranges::all_of(param.value.items, is_value))
    return fail(param.value.at, "'{}' must be a list of values such as [1, 2, 4], not {}",
                quote_control(param.key.text), yaml::found(param.value));
  std::vector<std::string> values;
  for (const yaml::Node& item : param.value.items) values.push_back(item.text);
  return values;
}

std::vector<std::string> cells_of(const Swept& row) {
  std::vector<std::string> cells;
  for (const Definition& value : row.values) cells.push_back(quote_control(value.value));
  const Tried& tried = row.tried;
  if (!tried.refused.empty()) {
    cells.push_back("refused: " + quote_control(tried.refused));
    return cells;
  }
  cells.push_back(human_seconds(tried.step));
  cells.push_back(fmt::format("{:.1f} %", 100 * tried.idle));
  cells.push_back(fmt::format("{:.1f} %", 100 * tried.exposed));
  cells.push_back(human_bytes(static_cast<int64_t>(tried.peak_bytes)));
  cells.push_back(tried.fits() ? "" : "does not fit");
  return cells;
}

}  // namespace

Result<std::vector<SweptParam>> read_sweep(const std::string& path) {
  PIPER_ASSIGN(const std::string text, read_text_file(path, yaml::kMaxBytes));
  PIPER_ASSIGN(const yaml::Node root, yaml::parse_yaml(path, text));
  const std::vector<std::string> keys = {"piper_sweep", "params"};
  PIPER_TRY(yaml::check_keys(root, "a sweep", keys, keys));
  const yaml::Node& version = root.find("piper_sweep")->value;
  if (version.text != "1")
    return fail(version.at, "version {} of sweeps is not supported", yaml::shown(version.text))
        .with_note("help: this program reads version 1");
  const yaml::Node& params = root.find("params")->value;
  if (!params.is(yaml::Node::Kind::kMap) || params.entries.empty())
    return fail(params.at, "'params' must be a map such as {{stages: [1, 2, 4]}}, not {}",
                yaml::found(params));
  std::vector<SweptParam> swept;
  int64_t rows = 1;
  for (const yaml::Entry& param : params.entries) {
    PIPER_ASSIGN(std::vector<std::string> values, read_values(param));
    rows *= std::ssize(values);
    if (rows > kMostRows)
      return fail(param.key.at, "the values make more than {} combinations", kMostRows);
    swept.push_back({param.key.text, std::move(values), param.key.at});
  }
  return swept;
}

Result<std::vector<Swept>> sweep(const SearchOptions& options,
                                 const std::vector<SweptParam>& params) {
  PIPER_ASSIGN(const Evaluator evaluator, Evaluator::make(options));
  const auto base = std::filesystem::relative(options.compile.strategy, options.folder);
  const std::string text = fmt::format("piper: 1\ninclude: [{}]\n", yaml::in_quotes(base.string()));
  size_t count = 1;
  for (const SweptParam& param : params) count *= param.values.size();
  std::vector<Swept> rows(count);
  for (size_t r = 0; r < count; ++r) {
    size_t left = r;
    rows[r].values.resize(params.size());
    for (size_t p = params.size(); p-- > 0; left /= params[p].values.size())
      rows[r].values[p] = {params[p].name, params[p].values[left % params[p].values.size()]};
    std::vector<std::string> given;
    for (const Definition& one : rows[r].values)
      given.push_back(fmt::format("{} = {}", one.name, one.value));
    rows[r].tried.params = join(given, ", ");
  }
  const auto try_row = [&](size_t r) -> Status {
    PIPER_ASSIGN(const Outcome outcome, evaluator.run(text, r, true, rows[r].values));
    take(outcome, options, rows[r].tried);
    return ok_status();
  };
  std::vector<Status> tried(count, ok_status());
  std::optional<Error> ended_by;  // the system refused something
  const auto end_row = [&](size_t r) {
    if (!tried[r]) rows[r].tried.refused = tried[r].error().message;
    if (!tried[r] && tried[r].error().code == ExitCode::kStorage) ended_by = tried[r].error();
    if (!ended_by && options.progress) options.progress(rows[r].tried, static_cast<int64_t>(r) + 1);
  };
  tried[0] = try_row(0);
  if (!tried[0])
    for (const SweptParam& param : params)  // one that the strategy does not have
      if (tried[0].error().at.file.starts_with(fmt::format("-D {}=", param.name))) {
        tried[0].error().at = param.at;
        return std::move(tried[0]).error();
      }
  end_row(0);
  in_parallel_in_order(
      count - 1, [](size_t) {}, [&](size_t r) { tried[r + 1] = try_row(r + 1); },
      [&](size_t r) { end_row(r + 1); }, static_cast<size_t>(options.threads));
  if (ended_by) return *std::move(ended_by);
  return rows;
}

std::string print_sweep(const std::vector<Swept>& rows) {
  std::vector<std::vector<std::string>> lines(1);
  for (const Definition& value : rows.front().values) lines[0].push_back(value.name);
  for (const char* column : {"step", "idle", "exposed", "memory"}) lines[0].emplace_back(column);
  size_t best = rows.size();
  for (size_t r = 0; r < rows.size(); ++r) {
    lines.push_back(cells_of(rows[r]));
    if (rows[r].tried.fits() && (best == rows.size() || rows[r].tried.step < rows[best].tried.step))
      best = r;
  }
  if (best < rows.size()) lines[best + 1].back() = "fastest";
  const size_t values = rows.front().values.size();
  std::vector<size_t> widths(lines[0].size());
  for (const auto& line : lines)
    for (size_t c = 0; c < std::min(line.size(), widths.size()); ++c)
      if (c < values || line.size() > values + 1) widths[c] = std::max(widths[c], line[c].size());
  std::string text;
  for (const auto& line : lines) {
    std::string out;
    for (size_t c = 0; c < line.size(); ++c)
      out += c < widths.size() && (c < values || line.size() > values + 1)
                 ? fmt::format("{}{:>{}}", c > 0 ? "  " : "", line[c], widths[c])
                 : "  " + line[c];
    while (out.ends_with(' ')) out.pop_back();
    text += out + "\n";
  }
  return text;
}

}  // namespace piper
