// Reads numbers with units of the powers of ten or of two.
#include "quantity.h"

#include <charconv>
#include <cmath>

namespace piper::cluster {
namespace {

struct UnitOfQuantity {
  Quantity what;
  std::string_view word;
  double size;
};
constexpr double kTen3 = 1e3, kTwo10 = 1024;
constexpr UnitOfQuantity kUnits[] = {
    {Quantity::kFlops, "FLOPS", 1},
    {Quantity::kFlops, "MFLOPS", 1e6},
    {Quantity::kFlops, "GFLOPS", 1e9},
    {Quantity::kFlops, "TFLOPS", 1e12},
    {Quantity::kFlops, "PFLOPS", 1e15},
    {Quantity::kBytes, "B", 1},
    {Quantity::kBytes, "kB", kTen3},
    {Quantity::kBytes, "MB", 1e6},
    {Quantity::kBytes, "GB", 1e9},
    {Quantity::kBytes, "TB", 1e12},
    {Quantity::kBytes, "KiB", kTwo10},
    {Quantity::kBytes, "MiB", kTwo10* kTwo10},
    {Quantity::kBytes, "GiB", kTwo10* kTwo10* kTwo10},
    {Quantity::kBytes, "TiB", kTwo10* kTwo10* kTwo10* kTwo10},
    {Quantity::kRate, "MB/s", 1e6},
    {Quantity::kRate, "GB/s", 1e9},
    {Quantity::kRate, "TB/s", 1e12},
    {Quantity::kRate, "MiB/s", kTwo10* kTwo10},
    {Quantity::kRate, "GiB/s", kTwo10* kTwo10* kTwo10},
    {Quantity::kRate, "Mb/s", 1e6 / 8},
    {Quantity::kRate, "Gb/s", 1e9 / 8},
    {Quantity::kTime, "ns", 1e-9},
    {Quantity::kTime, "us", 1e-6},
    {Quantity::kTime, "ms", 1e-3},
    {Quantity::kTime, "s", 1},
    {Quantity::kPower, "W", 1},
    {Quantity::kShare, "", 1},
    {Quantity::kShare, "%", 0.01},
    {Quantity::kNumber, "", 1},
};

std::string_view example_of(Quantity what) {
  switch (what) {
    case Quantity::kFlops:
      return "989 TFLOPS";
    case Quantity::kBytes:
      return "80 GB";
    case Quantity::kRate:
      return "3.35 TB/s";
    case Quantity::kTime:
      return "5 us";
    case Quantity::kPower:
      return "700 W";
    case Quantity::kShare:
      return "0.8";
    case Quantity::kNumber:
      break;
  }
  return "132";
}

}  // namespace

Result<double> read_quantity(const yaml::Node& node, std::string_view key, Quantity what) {
  const auto wrong = [&] {
    return fail(node.at, "'{}' must be a quantity such as {}, not {}", key, example_of(what),
                yaml::found(node));
  };
  if (!node.is(yaml::Node::Kind::kScalar)) return wrong();
  double number = 0;
  const char* const end = node.text.data() + node.text.size();
  const auto [rest, problem] = std::from_chars(node.text.data(), end, number);
  if (problem != std::errc() || !std::isfinite(number) || number < 0) return wrong();
  std::string_view unit(rest, static_cast<size_t>(end - rest));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  std::vector<std::string> words;
  for (const UnitOfQuantity& one : kUnits) {
    if (one.what != what) continue;
    if (unit != one.word) {
      if (!one.word.empty()) words.emplace_back(one.word);
      continue;
    }
    const double value = number * one.size;
    // Sums and quotients of such numbers are finite.
    constexpr double kLeast = 1e-18, kMost = 1e24;
    if (value != 0 && !(value >= kLeast && value <= kMost))
      return fail(node.at, "'{}' is beyond what can be counted with: {}", key, yaml::found(node));
    if (what == Quantity::kShare && value > 1)
      return fail(node.at, "'{}' must be a share of at most 1, not {}", key, yaml::found(node));
    return value;
  }
  Error error =
      fail(node.at, "'{}' has {} in {}{}", key, unit.empty() ? "no unit" : "an unknown unit",
           yaml::found(node), did_you_mean(unit, words));
  if (words.empty()) return wrong();
  return std::move(error).with_note("help: write a number with one of " + join(words, ", ") +
                                    fmt::format(", such as {}", example_of(what)));
}

}  // namespace piper::cluster
