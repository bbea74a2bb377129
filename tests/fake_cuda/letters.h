// What ranks of a faked NCCL tell each other, by name: in memory between threads of one process,
// or as files of the folder that FAKE_NCCL_FOLDER names between processes.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace piper::fake {

class Letters {
 public:
  static Letters& get();
  void put(const std::string& name, const std::string& bytes);
  bool is_there(const std::string& name) const;
  std::optional<std::string> read(const std::string& name) const;
  void remove(const std::string& name);
  // Those whose names begin so.
  std::vector<std::string> names(const std::string& begin) const;

 private:
  Letters();
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  const std::string folder_;                  // empty: none
  std::map<std::string, std::string> texts_;  // by name, where there is no folder
};

}  // namespace piper::fake
