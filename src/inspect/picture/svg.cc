// An image that needs nothing else: rectangles by row, the halves of a pair above each other.
#include <algorithm>

#include "labels.h"
#include "piper/plan/windows.h"

namespace piper {
namespace {

constexpr double kRow = 26, kCell = 22, kTop = 78, kLegendGap = 92;
// Pixels: of text, its letters in parts of that, and the smallest that can be read.
constexpr double kFont = 12, kPerFont = 0.6, kLetter = kFont * kPerFont, kSmallest = 5;
constexpr size_t kBehindRanks = 11;  // " idle 100 %"

constexpr const char* kStyle =
    "<style>\n"
    "text { font: 12px monospace; fill: #222; }\n"
    ".title { font: bold 15px sans-serif; }\n"
    ".F { fill: #7fb2ff; } .B { fill: #86d19a; } .I { fill: #6fd0d0; } .W { fill: #f0c75e; } .R { "
    "fill: #f0a08a; }\n"
    ".U { fill: #c4c4c4; } .idle { fill: #f4f4f4; }\n"
    ".cell { stroke: #fff; stroke-width: 1; } .later { stroke: #222; }\n"
    "</style>\n";

class Image {
 public:
  Image(const Picture& picture, std::string title)
      : picture_(picture),
        title_(std::move(title)),
        scale_(kLetter * static_cast<double>(label_width(picture) + 1) / usual_length(picture)) {
    size_t head = 4;
    for (const PictureRow& row : picture.rows) {
      head = std::max(head, ranks_of(row).size());
      for (const PictureCell& cell : row.cells)
        recomputes_ = recomputes_ || cell.pass == TaskPass::kR;
    }
    left_ = 10 + kLetter * static_cast<double>(head + kBehindRanks + 1);
  }

  std::string run() {
    const size_t longest = std::max(legend(picture_).size(), title_.size());
    const double width = std::max({left_ + picture_.length * scale_ + 90,
                                   (recomputes_ ? 7 : 6) * kLegendGap + 20,
                                   20 + kLetter * static_cast<double>(longest)}),
                 height = kTop + kRow * static_cast<double>(picture_.rows.size()) + 50;
    add("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
        "viewBox=\"0 0 {0:.0f} {1:.0f}\">\n",
        width, height);
    add("<title>{}</title>\n", escape_markup(title_));
    svg_ += kStyle;
    add("<text class=\"title\" x=\"10\" y=\"24\">{}</text>\n", escape_markup(title_));
    draw_legend();
    for (size_t r = 0; r < picture_.rows.size(); ++r)
      draw_row(picture_.rows[r], kTop + kRow * static_cast<double>(r));
    draw_axis(kTop + kRow * static_cast<double>(picture_.rows.size()));
    return svg_ + "</svg>\n";
  }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> text, Args&&... args) {
    fmt::format_to(std::back_inserter(svg_), text, std::forward<Args>(args)...);
  }

  void draw_legend() {
    static constexpr std::pair<const char*, const char*> kNames[] = {
        {"F", "forward"},    {"R", "again"},  {"B", "backward"}, {"I", "its input"},
        {"W", "its weight"}, {"U", "update"}, {"idle", "idle"}};
    double x = 10;
    for (const auto& [pass, name] : kNames) {
      if (*pass == 'R' && !recomputes_) continue;
      add("<rect class=\"cell {}\" x=\"{:.1f}\" y=\"36\" width=\"12\" height=\"12\"/>\n", pass, x);
      add("<text x=\"{:.1f}\" y=\"46\">{}</text>\n", x + 16, name);
      x += kLegendGap;
    }
  }

  void draw_row(const PictureRow& row, double y) {
    add("<text x=\"10\" y=\"{:.1f}\">{} idle {:.0f} %</text>\n", y + 15, ranks_of(row),
        row.idle * 100);
    add("<rect class=\"idle\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\"/>\n",
        left_, y, picture_.length * scale_, kCell);
    for (const PictureCell& cell : row.cells) draw_cell(cell, y);
  }
  void draw_cell(const PictureCell& cell, double y) {
    const double height = cell.paired ? kCell / 2 : kCell, x = left_ + cell.start * scale_,
                 width = cell.length * scale_;
    if (cell.second) y += height;
    add("<g><title>{}{}: {}{}, from {}</title>", escape_markup(cell.task),
        cell.step > 0 ? " of " + later_step(cell.step) : "", amount(picture_, cell.work),
        cell.paired ? " beside another" : "", amount(picture_, cell.start));
    add("<rect class=\"cell {}{}\" x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\"/>",
        static_cast<char>(cell.pass), cell.step > 0 ? " later" : "", x, y, width, height);
    draw_label(cell.label, x, y, width, height);
    svg_ += "</g>\n";
  }
  // Draws a label as large as fits, so that short cells have theirs, too.
  void draw_label(const std::string& label, double x, double y, double width, double height) {
    constexpr double kGap = 1;
    const double room = (width - 2 * kGap) / (kPerFont * static_cast<double>(label.size()));
    const double font = std::min({kFont, height - 2, room});
    if (font < kSmallest) return;
    add("<text x=\"{:.2f}\" y=\"{:.1f}\"", x + kGap, y + height / 2 + font / 3);
    if (font < kFont) add(" style=\"font-size: {:.1f}px\"", font - 0.05);
    add(">{}</text>", label);
  }

  // Draws about ten marks of time, and the unit that it is measured in.
  void draw_axis(double y) {
    const size_t steps = picture_.length * scale_ > 800 ? 10 : 2;
    for (size_t i = 0; i <= steps; ++i) {
      const double time = picture_.length * static_cast<double>(i) / static_cast<double>(steps);
      add("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", left_ + time * scale_, y + 14,
          amount(picture_, time));
    }
    add("<text x=\"10\" y=\"{:.1f}\">{}</text>\n", y + 34, escape_markup(legend(picture_)));
  }

  const Picture& picture_;
  const std::string title_;
  const double scale_;  // pixels of a unit or FLOP
  double left_ = 0;
  bool recomputes_ = false;
  std::string svg_;
};

}  // namespace

std::string draw_svg(const Picture& picture, const std::string& title) {
  return Image(picture, title).run();
}

}  // namespace piper
