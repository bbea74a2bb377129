// Labels, units and the legend of pictures.
#include "labels.h"

#include <algorithm>

#include "piper/inspect/analysis.h"

namespace piper {
namespace {

bool is_update(const PictureCell& cell) { return cell.pass == TaskPass::kU; }

bool any_cell(const Picture& picture, bool (*is)(const PictureCell&)) {
  return std::any_of(picture.rows.begin(), picture.rows.end(), [&](const PictureRow& row) {
    return std::any_of(row.cells.begin(), row.cells.end(), is);
  });
}

}  // namespace

size_t label_width(const Picture& picture) {
  size_t width = 2;
  for (const PictureRow& row : picture.rows)
    for (const PictureCell& cell : row.cells) width = std::max(width, cell.label.size());
  return width;
}

double usual_length(const Picture& picture) {
  if (picture.costs == PictureCosts::kUnits) return 1;
  std::vector<double> lengths;
  size_t most = 1;  // of a row
  for (const PictureRow& row : picture.rows) {
    most = std::max(most, row.cells.size());
    for (const PictureCell& cell : row.cells)
      if (!is_update(cell)) lengths.push_back(cell.work);
  }
  if (lengths.empty()) return picture.length > 0 ? picture.length : 1;
  const auto middle = lengths.begin() + static_cast<std::ptrdiff_t>((lengths.size() - 1) / 2);
  std::nth_element(lengths.begin(), middle, lengths.end());
  // A picture does not grow without end where few tasks cost a thousand times what most do.
  constexpr double kTimes = 64;
  return std::max(*middle, picture.length / (kTimes * static_cast<double>(most)));
}

std::string escape_markup(std::string_view text) {
  std::string out;
  for (const char c : quote_control(text)) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

std::string ranks_of(const PictureRow& row) {
  std::string text;
  for (size_t i = 0; i < row.ranks.size(); ++i) {
    if (text.size() > 8) return fmt::format("{}+{}", text, row.ranks.size() - i);
    text += (text.empty() ? "" : ",") + std::to_string(row.ranks[i]);
  }
  return text;
}

std::string amount(const Picture& picture, double length) {
  if (picture.costs == PictureCosts::kUnits)
    return fmt::format("{:.4g} unit{}", length, length == 1 ? "" : "s");
  if (picture.costs == PictureCosts::kSeconds) return human_seconds(length);
  for (const auto& [size, name] : {std::pair(1e15, "P"), {1e12, "T"}, {1e9, "G"}, {1e6, "M"}})
    if (length >= size) return fmt::format("{:.4g} {}FLOP", length / size, name);
  return fmt::format("{:.4g} kFLOP", length / 1e3);
}

std::string legend(const Picture& picture) {
  const bool units = picture.costs == PictureCosts::kUnits;
  std::string text = units ? "F forward 1, B backward 2 (I its input part 1, W its weight part 1)"
                           : "F forward, B backward (I its input part, W its weight part)";
  if (any_cell(picture, [](const PictureCell& cell) { return cell.pass == TaskPass::kR; }))
    text += units ? ", R again 1" : ", R again";
  if (!units && any_cell(picture, is_update)) text += ", U update";
  if (any_cell(picture, [](const PictureCell& cell) { return cell.paired; })) text += ", & overlap";
  text += fmt::format(", .. idle {:.0f} %", picture.idle * 100);
  if (picture.steady_idle)
    text += fmt::format(", ' of the second step; in a steady step {:.0f} %",
                        *picture.steady_idle * 100);
  return text;
}

}  // namespace piper
