// Learning rates as curves of text; explain.cc calls it.
#include "rate_curve.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace piper {
namespace {

constexpr int kColumns = 64, kRows = 5;

// Returns the last step that is shown: a tenth more than the last border. Of a formula without any
// it is a power of two, after which the rate stays for long, or twice the largest number.
int64_t last_step(const Rate& rate, double lr, const std::vector<int64_t>& borders) {
  constexpr double kMost = 1e15;
  if (!borders.empty()) return borders.back() + std::max<int64_t>(borders.back() / 10, 1);
  for (int64_t step = 16; step < int64_t{1} << 40; step *= 2) {
    const double now = rate.at(lr, step / 2);
    if (now == rate.at(lr, step) && now == rate.at(lr, step * 8 + 1)) return step;
  }
  return static_cast<int64_t>(std::min(2 * rate.longest(), kMost)) + 1;
}

}  // namespace

std::vector<std::string> rate_curve(const Rate& rate, double lr) {
  std::vector<int64_t> borders = rate.borders();
  std::erase_if(borders, [](int64_t border) { return border <= 0; });
  const int64_t last = last_step(rate, lr, borders);
  std::vector<double> rates;
  for (int c = 0; c < kColumns; ++c)
    rates.push_back(rate.at(lr, static_cast<int64_t>(std::llround(
                                    static_cast<double>(last) * c / (kColumns - 1)))));
  double most = *std::max_element(rates.begin(), rates.end());
  for (const int64_t border : borders) most = std::max(most, rate.at(lr, border));
  std::vector<std::string> plot(kRows, std::string(kColumns, ' '));
  for (size_t c = 0; c < rates.size(); ++c) {
    const double share = most > 0 ? std::clamp(rates[c] / most, 0.0, 1.0) : 0;
    plot[static_cast<size_t>(std::lround((1 - share) * (kRows - 1)))][c] = '*';
  }
  std::vector<std::string> lines;
  for (size_t r = 0; r < plot.size(); ++r) {
    const std::string label = r == 0 ? fmt::format("{:.3g}", most) : r + 1 == kRows ? "0" : "";
    plot[r].erase(plot[r].find_last_not_of(' ') + 1);
    lines.push_back(fmt::format("{:>10} |{}", label, plot[r]));
  }
  lines.push_back(fmt::format("{:>10}  0{:>{}}", "step", last, kColumns - 1));
  std::string values = fmt::format("step 0: {:.6g}", rate.at(lr, 0));
  for (const int64_t border : borders)
    values += fmt::format(", {}: {:.6g}", border, rate.at(lr, border));
  if (rate.at(lr, last) != rate.at(lr, borders.empty() ? 0 : borders.back()))
    values += fmt::format(", {}: {:.6g}", last, rate.at(lr, last));
  lines.push_back(std::move(values));
  return lines;
}

std::vector<std::string> rate_curves(std::span<const RoleProgram> roles) {
  std::set<std::pair<double, std::string>> known;
  std::vector<std::string> lines;
  for (const RoleProgram& role : roles)
    for (const Program& program : role.programs)
      for (const ProgramOp& op : program.ops) {
        if (op.op != "LearningRate") continue;
        const double lr = op.attrs.real("base");
        const Result<Rate> rate = Rate::parse(op.attrs.text("rate"));
        if (!rate || rate->words() == "lr" || !known.emplace(lr, rate->words()).second) continue;
        lines.push_back(fmt::format("lr {}, schedule {}", lr, rate->spelled()));
        for (std::string& line : rate_curve(*rate, lr)) lines.push_back("  " + std::move(line));
      }
  return lines;
}

}  // namespace piper
