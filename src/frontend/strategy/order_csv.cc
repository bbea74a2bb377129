// PyTorch's pipeline files: reading, writing, and the sends and receives that it derives.
#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "order_cells.h"
#include "piper/base/yaml.h"

namespace piper {
namespace {

using order_cells::is_compute;
using order_cells::name;

constexpr std::string_view kOverlap = "OVERLAP_F_B";

// Gives a type's letters in both dialects and what it is here. In a file of the old dialect the
// letters BW are a whole backward, which the new one writes as B.
struct Letters {
  std::string_view type, old_text, new_text;
};
constexpr std::array<Letters, 4> kComputations = {
    {{"F", "F", "F"}, {"B", "BW", "B"}, {"BI", "B", "I"}, {"BW", "W", "W"}}};
constexpr std::array<std::string_view, 4> kTransfers = {"SEND_F", "RECV_F", "SEND_B", "RECV_B"};
constexpr std::array<std::string_view, 3> kOfStages = {"UNSHARD", "RESHARD", "REDUCE_GRAD"};

bool is_transfer(std::string_view type) {
  return std::find(kTransfers.begin(), kTransfers.end(), type) != kTransfers.end();
}
bool is_of_stage(std::string_view type) {
  return std::find(kOfStages.begin(), kOfStages.end(), type) != kOfStages.end();
}

// ---- Reading -----------------------------------------------------------------------------------

// Holds a cell of the file with its letters as they are.
struct Raw {
  std::string_view text;
  SourceSpan at;
};

std::string_view trim(std::string_view text, SourceSpan& at) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) {
    text.remove_prefix(1);
    ++at.column;
  }
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r'))
    text.remove_suffix(1);
  at.length = std::max(1, static_cast<int>(text.size()));
  return text;
}

// Cuts the text into rows and cells as csv.writer leaves them: quotes, if any, around a whole cell.
Result<std::vector<std::vector<Raw>>> cut(std::string_view text, const std::string& path) {
  std::vector<std::vector<Raw>> rows;
  int line = 0;
  while (!text.empty()) {
    ++line;
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view row = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    rows.emplace_back();
    for (int column = 1;;) {
      const size_t comma = std::min(row.find(','), row.size());
      SourceSpan at{path, line, column, static_cast<int>(comma)};
      std::string_view cell = trim(row.substr(0, comma), at);
      if (cell.size() >= 2 && cell.front() == '"' && cell.back() == '"')
        cell = trim(cell.substr(1, cell.size() - 2), at);
      if (cell.find('"') != cell.npos) return fail(at, "a quote inside {}", yaml::shown(cell));
      rows.back().push_back({cell, at});
      if (comma == row.size()) break;
      row.remove_prefix(comma + 1);
      column += static_cast<int>(comma) + 1;
    }
  }
  const auto is_blank = [](const std::vector<Raw>& row) {
    return row.size() == 1 && row[0].text.empty();
  };
  while (!rows.empty() && is_blank(rows.back())) rows.pop_back();  // lines at the end of the file
  return rows;
}

Error no_cell(std::string_view text, const SourceSpan& at) {
  return fail(at, "{} is no cell of a pipeline file", yaml::shown(text))
      .with_note(
          "a cell is <stage><TYPE><microbatch> with F, B, I, W, SEND_F, RECV_F, SEND_B or RECV_B; "
          "<stage>UNSHARD, <stage>RESHARD or <stage>REDUCE_GRAD; or (<cell>;<cell>)OVERLAP_F_B");
}

Result<int64_t> read_number(std::string_view digits, std::string_view cell, const SourceSpan& at) {
  if (digits.empty() || digits.size() > 9) return no_cell(cell, at);
  int64_t number = 0;
  for (char c : digits) number = number * 10 + (c - '0');
  return number;
}

// The letters stay as they are: what they mean depends on the whole file.
Result<OrderCell> read_cell(std::string_view text, const SourceSpan& at) {
  constexpr std::string_view kDigits = "0123456789";
  const size_t letters = std::min(text.find_first_not_of(kDigits), text.size());
  const size_t micro = std::min(text.find_first_of(kDigits, letters), text.size());
  if (text.find_first_not_of(kDigits, micro) != text.npos) return no_cell(text, at);
  OrderCell cell;
  cell.at = at;
  cell.type = text.substr(letters, micro - letters);
  PIPER_ASSIGN(cell.stage, read_number(text.substr(0, letters), text, at));
  const bool known = is_transfer(cell.type) || is_of_stage(cell.type) || cell.type == "I" ||
                     std::any_of(kComputations.begin(), kComputations.end(),
                                 [&](const Letters& l) { return l.old_text == cell.type; });
  if (!known) return no_cell(text, at);
  if (is_of_stage(cell.type)) {
    if (micro < text.size()) return no_cell(text, at);
    return cell;
  }
  PIPER_ASSIGN(cell.micro, read_number(text.substr(micro), text, at));
  return cell;
}

Status check_overlaps(const OrderCell& cell) {
  if (is_transfer(cell.type) || is_of_stage(cell.type))
    return fail(cell.at, "'{}' in an overlap: only computations overlap", name(cell));
  return ok_status();
}

Status read_overlap(const Raw& raw, std::vector<OrderCell>& out) {
  const size_t close = raw.text.find(')'), middle = raw.text.find(';');
  if (close == raw.text.npos || middle == raw.text.npos || middle > close ||
      raw.text.substr(close + 1) != kOverlap)
    return no_cell(raw.text, raw.at);
  const auto part = [&](size_t begin, size_t end) {
    SourceSpan at = raw.at;
    at.column += static_cast<int>(begin);
    const std::string_view text = trim(raw.text.substr(begin, end - begin), at);
    return read_cell(text, at);
  };
  PIPER_ASSIGN(OrderCell first, part(1, middle));
  PIPER_ASSIGN(OrderCell second, part(middle + 1, close));
  for (const OrderCell* cell : {&first, &second}) PIPER_TRY(check_overlaps(*cell));
  first.paired = true;
  out.push_back(std::move(first));
  out.push_back(std::move(second));
  return ok_status();
}

// Detects the dialect: any BW: old; any I: new; B and W of one stage and microbatch: old; else new.
CsvDialect detect(const OrderRows& rows) {
  std::set<std::pair<int64_t, int64_t>> with_b, with_w;
  bool has_whole = false, has_input = false;
  for (const auto& row : rows)
    for (const OrderCell& cell : row) {
      has_whole |= cell.type == "BW";
      has_input |= cell.type == "I";
      if (cell.type == "B") with_b.insert({cell.stage, cell.micro});
      if (cell.type == "W") with_w.insert({cell.stage, cell.micro});
    }
  if (has_whole) return CsvDialect::kOld;
  if (has_input) return CsvDialect::kNew;
  const bool both = std::any_of(with_w.begin(), with_w.end(),
                                [&](const auto& one) { return with_b.count(one) > 0; });
  return both ? CsvDialect::kOld : CsvDialect::kNew;
}

Status translate(OrderRows& rows, CsvDialect dialect) {
  const bool old = dialect == CsvDialect::kOld;
  for (auto& row : rows)
    for (OrderCell& cell : row) {
      if (is_transfer(cell.type) || is_of_stage(cell.type)) continue;
      const auto letters = std::find_if(
          kComputations.begin(), kComputations.end(),
          [&](const Letters& l) { return (old ? l.old_text : l.new_text) == cell.type; });
      if (letters == kComputations.end())
        return fail(cell.at, "'{}' is not of the {} dialect", name(cell), old ? "old" : "new")
            .with_note(old ? "there B is the input half, W the weight half, BW the whole backward"
                           : "there I is the input half, W the weight half, B the whole backward");
      cell.type = letters->type;
    }
  return ok_status();
}

// ---- What waits for what -----------------------------------------------------------------------

// Counts cells that have run, by row, for what must be on the same device.
class Progress {
 public:
  explicit Progress(const OrderRows& rows) {
    for (size_t r = 0; r < rows.size(); ++r)
      for (const OrderCell& cell : rows[r]) {
        row_of_stage_[cell.stage] = static_cast<int64_t>(r);
        last_ = std::max(last_, cell.stage);
      }
  }
  // -1: no row has it.
  int64_t row_of(int64_t stage) const {
    const auto it = row_of_stage_.find(stage);
    return it == row_of_stage_.end() ? -1 : it->second;
  }
  bool is_local(int64_t a, int64_t b) const { return row_of(a) == row_of(b); }
  void add(const OrderCell& cell) { done_.insert(name(cell)); }
  bool has(int64_t stage, const char* type, int64_t micro) const {
    return done_.count(fmt::format("{}{}{}", stage, type, micro)) > 0;
  }
  // Returns the cell that must have run before this one and has not; empty: it can run.
  std::string missing(const OrderCell& cell) const {
    const int64_t s = cell.stage, m = cell.micro;
    const auto wants = [&](int64_t stage, const char* type) {
      return has(stage, type, m) ? "" : fmt::format("{}{}{}", stage, type, m);
    };
    const auto backward = [&](int64_t stage) {
      return has(stage, "B", m) || has(stage, "BI", m) ? "" : fmt::format("{}B{}", stage, m);
    };
    if (cell.type == "F")
      return s == 0 ? "" : is_local(s, s - 1) ? wants(s - 1, "F") : wants(s, "RECV_F");
    if (cell.type == "B" || cell.type == "BI") {
      if (!has(s, "F", m)) return wants(s, "F");
      return s == last_ ? "" : is_local(s, s + 1) ? backward(s + 1) : wants(s, "RECV_B");
    }
    if (cell.type == "BW") return wants(s, "BI");
    if (cell.type == "SEND_F") return wants(s, "F");
    if (cell.type == "SEND_B") return backward(s);
    if (cell.type == "RECV_F") return wants(s - 1, "SEND_F");
    if (cell.type == "RECV_B") return wants(s + 1, "SEND_B");
    return "";
  }

 private:
  std::map<int64_t, int64_t> row_of_stage_;
  int64_t last_ = -1;
  std::set<std::string> done_;
};

// Returns whether some row has the cell, or of a backward its input part; transfers are derived
// where no row has any.
bool is_named(const OrderRows& rows, const std::string& wanted) {
  const bool transfer = wanted.find('_') != wanted.npos;
  bool has_transfers = false;
  for (const auto& row : rows)
    for (OrderCell cell : row) {
      has_transfers = has_transfers || is_transfer(cell.type);
      if (name(cell) == wanted) return true;
      if (cell.type == "BI") cell.type = "B";
      if (name(cell) == wanted) return true;
    }
  return transfer && !has_transfers;
}

Error stuck(const OrderRows& rows, const std::vector<size_t>& next, const Progress& progress) {
  Error error;
  for (size_t r = 0; r < rows.size(); ++r) {
    if (next[r] == rows[r].size()) continue;
    const OrderCell& cell = rows[r][next[r]];
    const std::string missing = progress.missing(cell);
    if (!is_named(rows, missing))
      return fail(cell.at, "'{}' needs '{}', which no row has", name(cell), missing);
    if (error.message.empty())
      error = fail(cell.at, "the rows cannot run: they wait for each other");
    error.notes.push_back(
        fmt::format("row {}: '{}' comes next and waits for '{}'", r, name(cell), missing));
  }
  return error;
}

Status check_receives(const OrderRows& rows, const Progress& progress) {
  for (const auto& row : rows)
    for (const OrderCell& cell : row) {
      const bool forward = cell.type == "SEND_F";
      if (!forward && cell.type != "SEND_B") continue;
      const int64_t to = cell.stage + (forward ? 1 : -1);
      if (!progress.has(to, forward ? "RECV_F" : "RECV_B", cell.micro))
        return fail(cell.at, "'{}' has no receive '{}{}{}'", name(cell), to,
                    forward ? "RECV_F" : "RECV_B", cell.micro);
    }
  return ok_status();
}

// Every send has its receive on the row of the next stage, and the rows can be followed to the end.
Status check_communication(const OrderRows& rows) {
  Progress progress(rows);
  std::vector<size_t> next(rows.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < rows.size(); ++r)
      for (; next[r] < rows[r].size() && progress.missing(rows[r][next[r]]).empty(); ++next[r]) {
        progress.add(rows[r][next[r]]);
        moved = true;
      }
  }
  for (size_t r = 0; r < rows.size(); ++r)
    if (next[r] < rows[r].size()) return stuck(rows, next, progress);
  return check_receives(rows, progress);
}

bool same_task(const OrderCell& a, const OrderCell& b) {
  return a.stage == b.stage && a.micro == b.micro;
}

std::string text_of(OrderCell cell, CsvDialect dialect) {
  for (const Letters& letters : kComputations) {
    if (letters.type != cell.type) continue;
    cell.type = dialect == CsvDialect::kOld ? letters.old_text : letters.new_text;
    break;
  }
  return name(cell);
}

}  // namespace

Result<OrderFile> parse_order_csv(std::string_view text, const std::string& path,
                                  CsvDialect dialect) {
  PIPER_ASSIGN(const auto raw, cut(text, path));
  OrderFile file;
  const Raw* empty = nullptr;
  for (const auto& cells : raw) {
    auto& row = file.rows.emplace_back();
    for (const Raw& cell : cells) {
      if (cell.text.empty()) {
        if (!empty) empty = &cell;
      } else if (cell.text.front() == '(') {
        PIPER_TRY(read_overlap(cell, row));
      } else {
        PIPER_ASSIGN(OrderCell one, read_cell(cell.text, cell.at));
        file.has_communication |= is_transfer(one.type) || is_of_stage(one.type);
        row.push_back(std::move(one));
      }
    }
  }
  if (file.rows.empty()) return fail({path, 1, 1, 1}, "the pipeline file is empty");
  if (file.has_communication && empty)
    return fail(empty->at, "an empty cell in a file with communication");
  if (dialect == CsvDialect::kDetect) dialect = detect(file.rows);
  PIPER_TRY(translate(file.rows, dialect));
  PIPER_TRY(order_cells::check_stages(file.rows));
  PIPER_TRY(order_cells::check_rows(file.rows));
  if (file.has_communication) PIPER_TRY(check_communication(file.rows));
  return file;
}

std::string print_order_csv(const OrderRows& rows, CsvDialect dialect) {
  const auto text = [&](const OrderCell& cell) { return text_of(cell, dialect); };
  std::string out;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      out += i == 0 ? "" : ",";
      if (row[i].paired && i + 1 < row.size()) {
        out += fmt::format("({};{}){}", text(row[i]), text(row[i + 1]), kOverlap);
        ++i;
      } else {
        out += text(row[i]);
      }
    }
    out += "\n";
  }
  return out;
}

Result<OrderRows> add_communication(OrderRows rows) {
  for (auto& row : rows) {
    std::vector<OrderCell> joined;
    for (const OrderCell& cell : row) {
      const bool half = cell.type == "BW" && !joined.empty() && joined.back().type == "BI" &&
                        !joined.back().paired && same_task(joined.back(), cell);
      if (half)
        joined.back().type = "B";
      else
        joined.push_back(cell);
    }
    row = std::move(joined);
  }
  OrderRows out(rows.size());
  Progress progress(rows);
  std::vector<size_t> next(rows.size());
  const auto transfer = [&](size_t row, const OrderCell& cell) {
    const bool forward = cell.type == "F";
    if (cell.type == "BW") return;
    const int64_t to = cell.stage + (forward ? 1 : -1);
    const int64_t other = progress.row_of(to);
    if (other < 0 || other == static_cast<int64_t>(row)) return;
    const char* direction = forward ? "F" : "B";
    out[row].push_back({fmt::format("SEND_{}", direction), cell.stage, cell.micro, false, cell.at});
    out[static_cast<size_t>(other)].push_back(
        {fmt::format("RECV_{}", direction), to, cell.micro, false, cell.at});
    progress.add(out[static_cast<size_t>(other)].back());
  };
  // This visits one row after another, one cell or overlap at a time: one order that is legal
  // everywhere.
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < rows.size(); ++r) {
      if (next[r] == rows[r].size()) continue;
      const size_t count = rows[r][next[r]].paired ? 2 : 1;
      bool ready = true;
      for (size_t i = 0; i < count; ++i)
        ready = ready && progress.missing(rows[r][next[r] + i]).empty();
      if (!ready) continue;
      const size_t first = next[r];
      for (size_t i = 0; i < count; ++i) {
        out[r].push_back(rows[r][first + i]);
        progress.add(rows[r][first + i]);
      }
      for (size_t i = 0; i < count; ++i) transfer(r, rows[r][first + i]);
      next[r] += count;
      moved = true;
    }
  }
  for (size_t r = 0; r < rows.size(); ++r)
    if (next[r] < rows[r].size()) return stuck(rows, next, progress);
  return out;
}

}  // namespace piper
