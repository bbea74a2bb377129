// Runs one step of the compiler: time, dump, result.
#pragma once

#include <chrono>

#include "piper/planner/compile.h"

namespace piper {

class Steps {
 public:
  Steps(const CompileOptions& options, Compiled& compiled)
      : options_(options), compiled_(compiled) {}

  // `make` gives a Result<T>; `print` its text, called only if someone asked for it.
  template <class Make, class Print>
  auto run(std::string_view name, Make make, Print print) -> decltype(make()) {
    const auto start = std::chrono::steady_clock::now();
    auto result = make();
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    record(name, spent.count());
    if (result && options_.dump && !quiet) options_.dump(name, [&] { return print(*result); });
    return result;
  }
  // Runs a step that has no text form.
  template <class Make>
  auto run(std::string_view name, Make make) -> decltype(make()) {
    return run(name, std::move(make), [](const auto&) { return std::string(); });
  }
  bool quiet = false;  // for the oracles: the same steps, not dumped

 private:
  void record(std::string_view name, double seconds) {
    for (auto& [known, total] : compiled_.seconds)
      if (known == name) {
        total += seconds;
        return;
      }
    compiled_.seconds.emplace_back(name, seconds);
  }
  const CompileOptions& options_;
  Compiled& compiled_;
};

}  // namespace piper
