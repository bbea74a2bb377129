// Ranges of numbers that flags take, and the nearest name of an unknown flag.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "piper/base/base.h"

namespace piper {

// Adds the nearest flag to the message of an unknown one.
inline void suggest_flags(CLI::App& app) {
  app.failure_message([](const CLI::App* refused, const CLI::Error& error) {
    std::string text = CLI::FailureMessage::simple(refused, error);
    if (!dynamic_cast<const CLI::ExtrasError*>(&error)) return text;
    std::vector<std::string> names;
    for (const CLI::Option* option : refused->get_options())
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    const std::string what = error.what();
    const std::string given = what.substr(what.rfind(' ') + 1);
    return text.insert(text.find('\n'), did_you_mean(given.substr(0, given.find('=')), names));
  });
}

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
  return between(static_cast<double>(least), 1e15,
                 fmt::format("a whole number from {} to 1e15", least));
}

}  // namespace piper
