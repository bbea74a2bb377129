// The cells of explicit orders: "F0", "B3", as PyTorch's pipeline files write them.
#include "order_cells.h"

#include <algorithm>
#include <array>
#include <map>

#include "piper/base/yaml.h"

namespace piper::order_cells {
namespace {

constexpr std::array<std::string_view, 5> kCellTypes = {"F", "R", "B", "BI", "BW"};
constexpr int64_t kMostDigits = 9;

// Returns the digits at the start of `text`; -1 where there are none.
int64_t take_number(std::string_view& text) {
  size_t end = 0;
  while (end < text.size() && end < kMostDigits && text[end] >= '0' && text[end] <= '9') ++end;
  if (end == 0) return -1;
  int64_t number = 0;
  for (char c : text.substr(0, end)) number = number * 10 + (c - '0');
  text.remove_prefix(end);
  return number;
}

Result<OrderCell> parse_cell(std::string_view text, const SourceSpan& at) {
  OrderCell cell;
  cell.at = at;
  const std::string_view whole = text;
  cell.stage = take_number(text);
  const size_t letters = text.find_first_of("0123456789");
  cell.type = text.substr(0, letters);
  text.remove_prefix(std::min(letters, text.size()));
  cell.micro = take_number(text);
  const bool known = std::find(kCellTypes.begin(), kCellTypes.end(), cell.type) != kCellTypes.end();
  if (known && cell.micro >= 0 && text.empty()) return cell;
  return fail(at, "{} is no task", yaml::shown(whole))
      .with_note(
          "help: a task is a pass and a microbatch, F0, B0, BI0, BW0 or R0, after the stage where "
          "a "
          "device has several: 2F0; & joins two that overlap: 0F3&2B1");
}

}  // namespace

bool is_compute(const OrderCell& cell) {
  return std::find(kCellTypes.begin(), kCellTypes.end(), cell.type) != kCellTypes.end();
}

std::string name(const OrderCell& cell) {
  return fmt::format("{}{}{}", cell.stage < 0 ? "" : std::to_string(cell.stage), cell.type,
                     cell.micro < 0 ? "" : std::to_string(cell.micro));
}

Result<std::vector<OrderCell>> parse_list(const std::string& text, const SourceSpan& at) {
  std::vector<OrderCell> out;
  const bool exact = at.length == yaml::count_columns(text);
  bool open = false, joined = false;  // a pair is open; the last cell is the second of one
  for (size_t begin = 0; begin < text.size();) {
    const char c = text[begin];
    SourceSpan here = at;
    if (exact) here.column += static_cast<int>(begin), here.length = 1;
    if (c == ' ' || c == '\n') {
      ++begin;
      continue;
    }
    if (c == '&') {
      if (out.empty() || open) return fail(here, "'&' must be between two tasks");
      if (joined) return fail(here, "a pair has two tasks; this would be the third");
      open = out.back().paired = true;
      out.back().apart = begin + 1 < text.size() && text[begin + 1] == '&';
      begin += out.back().apart ? 2 : 1;
      continue;
    }
    const size_t end = std::min(text.find_first_of(" &\n", begin), text.size());
    if (exact) here.length = static_cast<int>(end - begin);
    PIPER_ASSIGN(OrderCell cell,
                 parse_cell(std::string_view(text).substr(begin, end - begin), here));
    out.push_back(std::move(cell));
    joined = open;
    open = false;
    begin = end;
  }
  if (open) return fail(at, "'&' must be between two tasks");
  return out;
}

Status check_rows(const OrderRows& rows) {
  std::map<std::string, const OrderCell*> seen;
  for (size_t r = 0; r < rows.size(); ++r) {
    for (const OrderCell& cell : rows[r]) {
      if (cell.micro < 0) continue;
      const std::string key = cell.stage < 0 ? fmt::format("{} {}", r, name(cell)) : name(cell);
      const auto [first, is_new] = seen.try_emplace(key, &cell);
      if (!is_new)
        return fail(cell.at, "'{}' is there twice", name(cell))
            .with_note(fmt::format("first at {}", yaml::place(first->second->at)));
    }
  }
  return ok_status();
}

Status check_stages(const OrderRows& rows) {
  std::map<int64_t, size_t> row_of_stage;
  for (size_t r = 0; r < rows.size(); ++r)
    for (const OrderCell& cell : rows[r]) {
      if (cell.stage < 0) continue;
      const auto [row, is_new] = row_of_stage.try_emplace(cell.stage, r);
      if (!is_new && row->second != r)
        return fail(cell.at, "stage {} is in row {} and in row {}", cell.stage, row->second, r)
            .with_note("a stage lives on one device");
    }
  return ok_status();
}

}  // namespace piper::order_cells
