// A tool as NVTX 3 loads it (NVTX_INJECTION64_PATH), written from its headers alone: each range
// that begins or ends is a line of the file that NVTX_TOOL_LOG names, "begin 1 piper/compute/F
// stage=0" or "end 1 piper", where 1 is the thread, and behind a number there is what it counts.
// With NVTX_TOOL_SLEEPS=1 it does not listen.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <thread>

namespace {

struct Attributes {
  uint16_t version, size;
  uint32_t category;
  int32_t colour_type;
  uint32_t colour;
  int32_t payload_type, reserved;
  int64_t payload;
  int32_t message_type;
  const void* message;
};
struct Domain {
  std::string name;
  std::map<uint32_t, std::string> categories;
  std::map<const void*, std::string> strings;
};

std::mutex mutex;
FILE* log_file = nullptr;
std::map<std::thread::id, int> threads;

int thread_number() {
  return threads.try_emplace(std::this_thread::get_id(), static_cast<int>(threads.size()) + 1)
      .first->second;
}

void* create_domain(const char* name) { return new Domain{name, {}, {}}; }
void name_category(void* domain, uint32_t category, const char* name) {
  const std::lock_guard lock(mutex);
  static_cast<Domain*>(domain)->categories[category] = name;
}
void* register_string(void* domain, const char* text) {
  const std::lock_guard lock(mutex);
  auto* const handle = new char;
  static_cast<Domain*>(domain)->strings[handle] = text;
  return handle;
}
int push(void* to, const Attributes* what) {
  const std::lock_guard lock(mutex);
  auto& domain = *static_cast<Domain*>(to);
  const bool is_known = what->version == 3 && what->size == 48 && what->message_type == 3 &&
                        what->colour_type == 1 && domain.strings.contains(what->message);
  std::fprintf(log_file, "begin %d %s/%s/%s", thread_number(), domain.name.c_str(),
               domain.categories[what->category].c_str(),
               is_known ? domain.strings[what->message].c_str() : "what it was never told of");
  if (what->payload_type == 2)
    std::fprintf(log_file, " %lld", static_cast<long long>(what->payload));
  std::fputs("\n", log_file);
  return 0;
}
int pop(void* of) {
  const std::lock_guard lock(mutex);
  std::fprintf(log_file, "end %d %s\n", thread_number(), static_cast<Domain*>(of)->name.c_str());
  return 0;
}

using Function = void (*)();
struct Callbacks {
  size_t size;
  int (*table_of)(int module, Function*** table, unsigned* count);
};

}  // namespace

extern "C" int InitializeInjectionNvtx2(const void* (*export_table)(uint32_t)) {
  const char* path = std::getenv("NVTX_TOOL_LOG");
  if (std::getenv("NVTX_TOOL_SLEEPS") || !path) return 0;
  const auto* callbacks = static_cast<const Callbacks*>(export_table(1));
  if (!callbacks || callbacks->size < sizeof(Callbacks) || export_table(2)) return 0;
  Function** table = nullptr;
  unsigned count = 0;
  // All modules that tools ask for are there, with a null pointer behind the last of their slots.
  const unsigned counts[] = {16, 9, 15, 7, 16, 7};
  for (int module = 1; module <= 6; ++module) {
    if (callbacks->table_of(module, &table, &count) != 1 || count != counts[module - 1]) return 0;
    for (unsigned slot = 1; slot < count; ++slot)
      if (!table[slot]) return 0;
    if (table[0] || table[count]) return 0;
  }
  if (callbacks->table_of(0, &table, &count) || callbacks->table_of(7, &table, &count)) return 0;
  log_file = std::fopen(path, "w");
  if (!log_file || callbacks->table_of(5, &table, &count) != 1) return 0;
  const auto listen = [&](int slot, auto function) {
    *table[slot] = reinterpret_cast<Function>(function);
  };
  listen(4, push);
  listen(5, pop);
  listen(8, name_category);
  listen(10, register_string);
  listen(12, create_domain);
  return 1;
}
