#include "letters.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace piper::fake {

namespace fs = std::filesystem;

Letters::Letters()
    : folder_(std::getenv("FAKE_NCCL_FOLDER") ? std::getenv("FAKE_NCCL_FOLDER") : "") {}

Letters& Letters::get() {
  static Letters& letters = *new Letters;
  return letters;
}

// Whole at once, for whoever looks. Its draft has another beginning: who leaves a room takes what
// begins with the room's name along, and not what another rank writes at that moment.
void Letters::put(const std::string& name, const std::string& bytes) {
  if (folder_.empty()) {
    texts_[name] = bytes;
    return;
  }
  const std::string draft = path(fmt::format("draft-{}", name));
  std::ofstream(draft, std::ios::binary) << bytes;
  fs::rename(draft, path(name));
}

bool Letters::is_there(const std::string& name) const {
  return folder_.empty() ? texts_.contains(name) : access(path(name).c_str(), F_OK) == 0;
}

std::optional<std::string> Letters::read(const std::string& name) const {
  if (folder_.empty()) {
    const auto found = texts_.find(name);
    return found == texts_.end() ? std::nullopt : std::optional(found->second);
  }
  std::ifstream file(path(name), std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void Letters::remove(const std::string& name) {
  if (folder_.empty())
    texts_.erase(name);
  else
    unlink(path(name).c_str());
}

std::vector<std::string> Letters::names(const std::string& begin) const {
  std::vector<std::string> found;
  for (auto at = texts_.lower_bound(begin); at != texts_.end() && at->first.starts_with(begin);
       ++at)
    found.push_back(at->first);
  if (folder_.empty()) return found;
  for (const auto& entry : fs::directory_iterator(folder_))
    if (const std::string name = entry.path().filename(); name.starts_with(begin))
      found.push_back(name);
  return found;
}

}  // namespace piper::fake
