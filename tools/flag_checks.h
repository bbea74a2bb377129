// Ranges of numbers that flags take.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string>

namespace piper {

// Checks a range like CLI::Range, which prints its bounds with all 309 digits of the largest
// double.
inline CLI::Validator between(double least, double most, std::string text) {
  return {[=](const std::string& given) -> std::string {
            char* end = nullptr;
            const double value = std::strtod(given.c_str(), &end);
            return *end == '\0' && value >= least && value <= most ? "" : given + " is not " + text;
          },
          ""};
}
inline CLI::Validator a_count(int64_t least) {
  return between(static_cast<double>(least), 1e15, fmt::format("a whole number from {} on", least));
}

}  // namespace piper
