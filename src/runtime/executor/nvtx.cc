// Loads the tool that NVTX3's variable names, and fills its table of callbacks.
#include "nvtx.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <mutex>
#include <set>

#include "nvtx_injection.h"

namespace piper {
namespace {

using namespace nvtx;  // NOLINT: this room's own

constexpr size_t kMostSlots = 17;

// Holds the table that the tool fills.
struct Slotted {
  std::array<std::array<Function, kMostSlots>, kModules> functions{};
  std::array<std::array<Function*, kMostSlots>, kModules> slots{};
  Slotted() {
    for (int module = kCore; module < kModules; ++module)
      for (unsigned slot = 1; slot < kSlots[module]; ++slot)
        slots[module][slot] = &functions[module][slot];
  }
};
Slotted& slotted() {
  static Slotted slotted;
  return slotted;
}

int slots_of(int module, Slots* slots, unsigned* count) {
  if (module < kCore || module >= kModules) return 0;
  if (slots) *slots = slotted().slots[static_cast<size_t>(module)].data();
  if (count) *count = kSlots[module];
  return 1;
}

const void* table_of(uint32_t table) {
  static const Callbacks callbacks{.slots_of = slots_of};
  static const VersionInfo version{.tool_is = [](uint32_t) {}};
  if (table == kCallbacks) return &callbacks;
  return table == kVersionInfo ? &version : nullptr;
}

template <class F>
F written(Callback callback) {
  return reinterpret_cast<F>(slotted().functions[kCore2][callback]);
}

// Names a category once.
void name_category(void* domain, uint32_t category, const char* name) {
  static std::mutex mutex;
  static std::set<uint32_t> named;
  const std::lock_guard lock(mutex);
  const auto name_it = written<NameCategory>(kNameCategory);
  if (name_it && named.insert(category).second) name_it(domain, category, name);
}

}  // namespace

Result<const Nvtx*> Nvtx::open() {
  const char* path = std::getenv(kVariable);
  if (!path || !*path) return nullptr;
  void* library = dlopen(path, RTLD_LAZY);
  if (!library) return fail("{}: {}", kVariable, dlerror());
  const auto initialize = reinterpret_cast<Initialize>(dlsym(library, kInitialize));
  if (!initialize) return fail("{}: {} has no {}", kVariable, path, kInitialize);
  if (initialize(table_of) == 0) return fail("{}: {} does not listen", kVariable, path);
  static Nvtx made;
  made.push_ = written<Push>(kRangePush);
  made.pop_ = written<Pop>(kRangePop);
  if (!made.push_ || !made.pop_) return nullptr;  // it listens to other things
  const auto create = written<CreateDomain>(kCreateDomain);
  made.domain_ = create ? create("piper") : nullptr;
  return &made;
}

Result<const Nvtx*> Nvtx::tool() {
  static const Result<const Nvtx*> opened = open();
  return opened;
}

NvtxRange Nvtx::range(const std::string& name, uint32_t category, const char* category_name,
                      uint32_t colour) const {
  constexpr uint32_t kOpaque = 0xff000000;
  name_category(domain_, category, category_name);
  NvtxRange made;
  made.category = category;
  made.colour = kOpaque | colour;
  const auto register_string = written<RegisterString>(kRegisterString);
  made.message = register_string ? register_string(domain_, name.c_str()) : nullptr;
  return made;
}

NvtxRange Nvtx::numbered(NvtxRange range, int64_t number) {
  constexpr int32_t kWholeNumber = 2;
  range.payload_type = kWholeNumber;
  range.payload = number;
  return range;
}

}  // namespace piper
