// usage: fuzz_seeds FOLDER STRATEGY.yaml… MODEL.onnx…: writes FOLDER/TARGET/DIGEST.
#include <cstdio>
#include <filesystem>

#include "piper/base/base.h"
#include "targets.h"

int main(int argc, char** argv) {
  std::vector<std::string> strategies, models;
  for (int i = 2; i < argc; ++i) {
    const std::string path = argv[i];
    (path.ends_with(".yaml") ? strategies : models).push_back(path);
  }
  if (argc < 3) {
    std::fputs("usage: fuzz_seeds FOLDER STRATEGY.yaml… MODEL.onnx…\n", stderr);
    return 2;
  }
  for (const auto& [target, seeds] : piper::fuzz::make_seeds(strategies, models)) {
    const std::string folder = std::string(argv[1]) + "/" + target;
    std::filesystem::create_directories(folder);
    for (const std::string& seed : seeds)
      if (!piper::write_file(folder + "/" + piper::digest(seed), seed)) return 1;
    std::printf("%s: %zu seeds\n", target.c_str(), seeds.size());
  }
}
