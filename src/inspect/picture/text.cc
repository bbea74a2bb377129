// Rows of characters: a cell is its label and '=' to its end, a blank parts it from the next.
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "labels.h"

namespace piper {
namespace {

constexpr size_t kLeastWidth = 40;

const char* colour_of(TaskPass pass) {
  switch (pass) {
    case TaskPass::kF:
      return "\x1b[44;97m";
    case TaskPass::kB:
      return "\x1b[42;30m";
    case TaskPass::kBI:
      return "\x1b[46;30m";
    case TaskPass::kBW:
      return "\x1b[43;30m";
    case TaskPass::kR:
      return "\x1b[45;97m";
    case TaskPass::kU:
    case TaskPass::kPrepare:
    case TaskPass::kMove:
    case TaskPass::kNone:
      break;
  }
  return "\x1b[47;30m";
}

// Holds what a column shows: a character, and the pass whose colour it has.
struct Column {
  char text = ' ';
  TaskPass pass = TaskPass::kNone;
};

class Drawing {
 public:
  Drawing(const Picture& picture, const PictureText& form)
      : picture_(picture),
        form_(form),
        period_(label_width(picture) + (is_in_units() ? 1 : 2)),
        scale_(static_cast<double>(period_) / usual_length(picture)) {
    for (const PictureRow& row : picture.rows) head_ = std::max(head_, ranks_of(row).size());
    block_ = block_columns();
    columns_ = column_of(picture.length);
  }

  std::string run() {
    std::vector<std::vector<Column>> rows;
    for (const PictureRow& row : picture_.rows) rows.push_back(columns_of(row));
    std::string text;
    for (size_t from = 0; from == 0 || from < columns_; from += block_) {
      const double time = static_cast<double>(from) / scale_;
      text += fmt::format("{}{:>{}}   idle  {}\n", from == 0 ? "" : "\n", "rank", head_,
                          from == 0 ? "time ->" : "from " + amount(picture_, time) + " ->");
      for (size_t r = 0; r < rows.size(); ++r)
        text += fmt::format("{:>{}}  {:>3.0f} %  {}\n", ranks_of(picture_.rows[r]), head_,
                            picture_.rows[r].idle * 100, part(rows[r], from, from + block_));
    }
    return text + footer();
  }

 private:
  size_t column_of(double time) const { return static_cast<size_t>(std::llround(time * scale_)); }
  bool is_in_units() const { return picture_.costs == PictureCosts::kUnits; }
  // Returns how many columns a block has: whole units, or one length for all of the picture where
  // that makes cells little narrower.
  size_t block_columns() {
    const double all = picture_.length * scale_;
    if (form_.width == 0) return std::max<size_t>(column_of(picture_.length), 1);
    const size_t columns = std::max(form_.width, kLeastWidth) - head_ - 9;
    if (is_in_units()) return std::max(columns / period_, size_t{1}) * period_;
    const double blocks = std::max(std::floor(all / static_cast<double>(columns) + 0.8), 1.0);
    scale_ = std::min(scale_, blocks * static_cast<double>(columns) / picture_.length);
    return columns;
  }

  std::vector<Column> columns_of(const PictureRow& row) {
    std::vector<Column> columns(columns_);
    for (size_t c = 0; c < columns_; ++c) columns[c].text = c % period_ < 2 ? '.' : ' ';
    for (size_t i = 0; i < row.cells.size(); ++i) {
      const size_t first = i;
      const PictureCell& cell = row.cells[i];
      while (cell.paired && i + 1 < row.cells.size() && is_of_pair(row.cells[i + 1], cell)) ++i;
      double end = 0;
      for (size_t c = first; c <= i; ++c)
        end = std::max(end, row.cells[c].start + row.cells[c].length);
      draw({&row.cells[first], i - first + 1}, columns, column_of(cell.start), column_of(end));
    }
    return columns;
  }
  // Returns all of the second half, and what else the first begins with it.
  static bool is_of_pair(const PictureCell& next, const PictureCell& first) {
    return next.paired && next.start < first.start + std::max(first.length, 0.0) * (1 - 1e-9) &&
           (next.second || !first.second);
  }

  // "F3==", of a pair "F3&I2+W2==": what does not fit is left out from the right.
  void draw(std::span<const PictureCell> cells, std::vector<Column>& columns, size_t from,
            size_t to) {
    if (from >= to) {
      ++too_short_;
      return;
    }
    if (from > 0 && columns[from - 1].text == '.') columns[from - 1].text = ' ';
    const size_t end = to - from > 1 ? to - 1 : to;  // before the blank
    size_t c = from;
    for (size_t i = 0; i < cells.size(); ++i) {
      std::string label = cells[i].label;
      const bool joins = i > 0;
      if (c + label.size() + (joins ? 1 : 0) > end) {
        if (joins) break;
        label.resize(1);
      }
      if (joins) label.insert(0, 1, cells[i].second != cells[i - 1].second ? '&' : '+');
      for (const char text : label) columns[c++] = {text, cells[i].pass};
    }
    for (; c < end; ++c) columns[c] = {'=', cells.back().pass};
    for (; c < to; ++c) columns[c] = {};
  }

  std::string part(const std::vector<Column>& columns, size_t from, size_t to) const {
    std::string text;
    TaskPass pass = TaskPass::kNone;
    for (size_t c = from; c < std::min(to, columns.size()); ++c) {
      if (form_.colour && columns[c].pass != pass) {
        text += columns[c].pass == TaskPass::kNone || pass != TaskPass::kNone ? "\x1b[0m" : "";
        text += columns[c].pass == TaskPass::kNone ? "" : colour_of(columns[c].pass);
      }
      pass = columns[c].pass;
      text += columns[c].text;
    }
    if (form_.colour && pass != TaskPass::kNone) text += "\x1b[0m";
    while (!text.empty() && text.back() == ' ') text.pop_back();
    return text;
  }

  std::string footer() const {
    std::vector<std::string> lines = split_text(legend(picture_), '\n');
    if (!is_in_units())
      lines.push_back(
          picture_.costs == PictureCosts::kSeconds
              ? fmt::format("{} a column", amount(picture_, 1 / scale_))
              : fmt::format("costs: the FLOPs of what a task runs, {} a column; messages, "
                            "gathers and copies take no time",
                            amount(picture_, 1 / scale_)));
    if (too_short_ > 0)
      lines.push_back(
          fmt::format("{} pieces of less than half a column are not shown", too_short_));
    std::string text;
    for (const std::string& line : lines) text += fmt::format("{:>{}}  {}\n", "", head_, line);
    return text;
  }

  const Picture& picture_;
  const PictureText& form_;
  const size_t period_;  // columns of a usual cell
  double scale_;         // columns of a unit or FLOP
  size_t head_ = 4, block_ = 0, columns_ = 0;
  int64_t too_short_ = 0;
};

}  // namespace

PictureText text_for(std::FILE* file) {
  if (isatty(fileno(file)) == 0) return {};
  winsize size{};
  const bool known = ioctl(fileno(file), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return {known ? size.ws_col : size_t{80}, std::getenv("NO_COLOR") == nullptr};
}

std::string draw_text(const Picture& picture, const PictureText& form) {
  if (picture.length == 0) return "schedule: nothing is computed\n";
  return Drawing(picture, form).run();
}

}  // namespace piper
