// Training settings as a line of words.
#pragma once

#include <sstream>

#include "piper/frontend/autodiff.h"

namespace piper::test {

// "optimizer=adamw lr=0.1 …", then "group=GLOB lr=… wd=…" lines; without groups there is "**".
// Of a formula `rate` blanks are written '_'.
inline TrainSpec parse_train(const std::string& text) {
  TrainSpec train;
  ParamGroup defaults{.match = "**"};
  ParamGroup* group = &defaults;
  std::string rate = "lr";
  std::istringstream words(text);
  train.groups.reserve(16);  // `group` points into it
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    std::string value = word.substr(equals + 1);
    if (key == "optimizer") {
      train.optimizer.name = value;
      continue;
    }
    if (key == "rate") {
      for (char& c : value) c = c == '_' ? ' ' : c;
      rate = value;
      continue;
    }
    if (key == "group") {
      train.groups.push_back({.match = value});
      group = &train.groups.back();
      continue;
    }
    const double number = std::stod(value);
    if (key == "lr") group->lr = number;
    if (key == "wd") group->weight_decay = number;
    if (key == "ema") train.ema = number;
    if (key == "clip") train.clip_norm = number;
    constexpr std::pair<const char*, const char*> kSettings[] = {
        {"momentum", "momentum"},   {"dampening", "dampening"},
        {"eps", "eps"}, {"beta1", "beta1"},             {"lr_decay", "lr_decay"},
        {"wd_after", "weight_decay_after"}, {"accumulator", "initial_accumulator_value"}};
    for (const auto& [word, setting] : kSettings)
      if (key == word) train.optimizer.settings.set(setting, number);
    if (key == "nesterov") train.optimizer.settings.set("nesterov", int64_t{number != 0});
    if (key == "count") train.optimizer.count = static_cast<int64_t>(number);
  }
  if (train.groups.empty()) train.groups.push_back(defaults);
  for (ParamGroup& each : train.groups) each.rate = rate;
  return train;
}

}  // namespace piper::test
