// Repeated modules of a model, from the scopes of its nodes: what annotations can match.
#pragma once

#include "piper/base/base.h"

namespace piper {

struct LayerPattern {
  std::string match;            // "model/h/{layer}/**"
  std::vector<int64_t> values;  // of {layer}, sorted
  size_t nodes = 0;
};
struct Layers {
  std::vector<LayerPattern> patterns;                // in order of the first node
  std::vector<std::pair<std::string, size_t>> rest;  // scopes in no pattern, and how many nodes
};
// Counts the outermost integer of a path as its layer; one that takes a single value is no layer.
Layers find_layers(std::span<const std::string> scopes);

}  // namespace piper
