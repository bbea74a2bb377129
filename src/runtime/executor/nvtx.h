// What a thread is at, for tools that show it on a time line: ranges of a domain "piper", as NVTX 3
// has them. The tool (Nsight Systems, for one) is a library that the variable NVTX_INJECTION64_PATH
// names; it is loaded when somebody first asks for it, and nothing is needed to build.
#pragma once

#include "piper/base/base.h"

namespace piper {

// Holds what a tool is told when a range begins, in NVTX's own form; it is made beforehand, so that
// nothing is formatted or allocated then.
struct NvtxRange {
  uint16_t version = 3;
  uint16_t size = 48;
  uint32_t category = 0;
  int32_t colour_type = 1;  // alpha, red, green, blue
  uint32_t colour = 0;
  int32_t payload_type = 0;  // none
  int32_t reserved = 0;
  int64_t payload = 0;
  int32_t message_type = 3;  // a name that the tool has made a handle of
  const void* message = nullptr;
};
static_assert(sizeof(NvtxRange) == 48);

class Nvtx {
 public:
  // Null: the variable names no tool. Error: the one that it names cannot be loaded, or does not
  // want to listen.
  static Result<const Nvtx*> tool();

  // Takes locks. The category is a number from 1 on and its name; the colour 0xRRGGBB.
  NvtxRange range(const std::string& name, uint32_t category, const char* category_name,
                  uint32_t colour) const;
  // Returns the same range with a number, such as that of a step.
  static NvtxRange numbered(NvtxRange range, int64_t number);

  // These begin and end a range of the calling thread, within those that it has begun and not
  // ended.
  void begin(const NvtxRange& range) const { push_(domain_, &range); }
  void end() const { pop_(domain_); }

 private:
  static Result<const Nvtx*> open();
  using Push = int (*)(void* domain, const NvtxRange* range);
  using Pop = int (*)(void* domain);
  void* domain_ = nullptr;
  Push push_ = nullptr;
  Pop pop_ = nullptr;
};

// Keeps a range open as long as it lives.
class NvtxScope {
 public:
  NvtxScope() = default;
  NvtxScope(const Nvtx& tool, const NvtxRange& range) : tool_(&tool) { tool.begin(range); }
  ~NvtxScope() {
    if (tool_) tool_->end();
  }
  NvtxScope(const NvtxScope&) = delete;
  NvtxScope& operator=(const NvtxScope&) = delete;

 private:
  const Nvtx* const tool_ = nullptr;
};

}  // namespace piper
