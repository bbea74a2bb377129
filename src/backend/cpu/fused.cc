// Fused: a chain of pointwise ops in one pass over memory. expr is a postfix program over a stack
// of runs:
//   3            pushes input 3, broadcast to the output's shape
//   Add, Cast:f32, Gelu:tanh   takes its operands from the stack (the last one on top) and pushes
//   the result =2           names the top of the stack 2 and leaves it there
//   @2           pushes what was named 2
// "0 1 Add =0 @0 Mul" is (in0 + in1)². Each block of elements goes through the whole program while
// it is in the nearest cache; the block functions are those of the single ops, so the bits are the
// same.
#include <algorithm>
#include <charconv>
#include <cstring>

#include "blocks.h"
#include "dtypes.h"
#include "families.h"
#include "loop.h"

namespace piper::cpu {
namespace {

constexpr int64_t kBlockElements = 1024;
constexpr size_t kMaxFusedInputs = kMaxOperands - 1;
constexpr size_t kMaxSlots = 64;
constexpr int64_t kSlotBytes = kBlockElements * 8;

// Where an operand of a step is: an input, or a block of scratch that an earlier step wrote.
struct Source {
  int16_t input = -1;
  int16_t slot = -1;
  DType type = DType::kF32;
};

struct Step {
  BlockFn run = nullptr;
  std::array<Source, kMaxBlockOperands> operands;
  int count = 0;
  int16_t slot = -1;  // of the result
  DType type = DType::kF32;
};

struct Chain {
  std::vector<Step> steps;
  int16_t slots = 0;
};

// Turns the text into steps. Slots are handed out again as soon as nothing can read them.
class Parser {
 public:
  explicit Parser(const Use& use) : use_(use) {}

  Result<Chain> parse(std::string_view text) {
    for (const std::string& token : split_text(text, ' ')) {
      if (token.empty()) continue;
      if (Status ok = token_step(token); !ok) {
        return fail("expr at '{}': {}", token, ok.error().message);
      }
    }
    PIPER_WANT(stack_.size() == 1, "expr leaves {} values", stack_.size());
    PIPER_WANT(!chain_.steps.empty() && stack_[0].slot >= 0, "expr has no op");
    // The last step writes the output itself.
    PIPER_WANT(chain_.steps.back().slot == stack_[0].slot, "expr ends with no op");
    PIPER_WANT(stack_[0].type == use_.outputs[0].dtype, "expr makes {}, not {}",
               info(stack_[0].type).name, info(use_.outputs[0].dtype).name);
    return std::move(chain_);
  }

 private:
  static std::optional<size_t> number(std::string_view text) {
    size_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return value;
  }

  Status token_step(const std::string& token) {
    if (const auto input = number(token)) {
      PIPER_WANT(*input < use_.inputs.size(), "no such input");
      stack_.push_back({static_cast<int16_t>(*input), -1, use_.inputs[*input].dtype});
      return ok_status();
    }
    if (token[0] == '=' || token[0] == '@') return name_step(token);
    const size_t colon = std::min(token.find(':'), token.size());
    const std::string op = token.substr(0, colon);
    return op_step(op, colon < token.size() ? token.substr(colon + 1) : "");
  }

  Status name_step(const std::string& token) {
    const auto name = number(std::string_view(token).substr(1));
    PIPER_WANT(name && *name < kMaxSlots, "not a name");
    if (names_.size() <= *name) names_.resize(*name + 1);
    if (token[0] == '=') {
      PIPER_WANT(!stack_.empty(), "nothing to name");
      PIPER_WANT(!names_[*name], "named twice");
      names_[*name] = stack_.back();
    } else {
      PIPER_WANT(names_[*name].has_value(), "no such name");
      stack_.push_back(*names_[*name]);
    }
    return ok_status();
  }

  Status op_step(const std::string& op, const std::string& option) {
    const size_t count = block_operands(op);
    PIPER_WANT(count > 0, "no pointwise op");
    PIPER_WANT(stack_.size() >= count, "takes {} operands", count);
    Step step;
    step.count = static_cast<int>(count);
    std::array<DType, kMaxBlockOperands> types{};
    for (size_t i = 0; i < count; ++i) {
      step.operands[i] = stack_[stack_.size() - count + i];
      types[i] = step.operands[i].type;
    }
    PIPER_ASSIGN(const Block block, find_block(op, option, std::span(types).first(count)));
    step.run = block.run;
    step.type = block.type;
    step.slot = free_slot();  // before the operands are taken: their elements may differ in size
    stack_.resize(stack_.size() - count);
    PIPER_WANT(static_cast<size_t>(step.slot) < kMaxSlots, "needs too many values at once");
    chain_.slots = std::max<int16_t>(chain_.slots, step.slot + 1);
    stack_.push_back({-1, step.slot, step.type});
    chain_.steps.push_back(step);
    return ok_status();
  }

  int16_t free_slot() const {
    for (int16_t slot = 0;; ++slot) {
      auto holds = [&](const Source& source) { return source.slot == slot; };
      const bool named = std::any_of(names_.begin(), names_.end(),
                                     [&](const auto& name) { return name && holds(*name); });
      if (!named && std::none_of(stack_.begin(), stack_.end(), holds)) return slot;
    }
  }

  const Use& use_;
  Chain chain_;
  std::vector<Source> stack_;
  std::vector<std::optional<Source>> names_;
};

// Runs the chain on one block; `in` are the inputs' first elements.
void run_block(const Chain& chain, const std::byte* const* in, const bool* input_step,
               std::byte* scratch, std::byte* out, int64_t n) {
  for (const Step& step : chain.steps) {
    const std::byte* operands[kMaxBlockOperands];
    bool steps[kMaxBlockOperands];
    for (int i = 0; i < step.count; ++i) {
      const Source& source = step.operands[i];
      operands[i] = source.input >= 0 ? in[source.input] : scratch + source.slot * kSlotBytes;
      steps[i] = source.input < 0 || input_step[source.input];
    }
    const bool last = &step == &chain.steps.back();
    step.run(operands, steps, last ? out : scratch + step.slot * kSlotBytes, n);
  }
}

}  // namespace

Result<KernelPtr> make_fused(const Use& use) {
  PIPER_TRY(use.operands(use.inputs.size(), kMaxFusedInputs));
  PIPER_ASSIGN(const std::string text, use.text_or("expr", ""));
  PIPER_ASSIGN(Chain chain, Parser(use).parse(text));
  const size_t count = use.inputs.size();
  std::vector<std::vector<int64_t>> strides{strides_of(use.out())};
  std::array<int64_t, kMaxFusedInputs> bytes{};
  for (size_t i = 0; i < count; ++i) {
    bytes[i] = info(use.inputs[i].dtype).bytes;
    PIPER_ASSIGN(std::vector<int64_t> own, broadcast_strides(use.in(i), use.out()));
    strides.push_back(std::move(own));
  }
  const Loop loop = make_loop(use.out(), strides);
  std::array<bool, kMaxFusedInputs> step{};
  for (size_t i = 0; i < count; ++i) step[i] = loop.inner_steps[i + 1] != 0;
  const int64_t out_bytes = info(use.outputs[0].dtype).bytes;
  const int64_t scratch_bytes = chain.slots * kSlotBytes;
  auto run = [=, chain = std::move(chain)](Pointers p, std::byte* scratch) {
    loop.each_row([&](const int64_t* at) {
      for (int64_t i = 0; i < loop.inner; i += kBlockElements) {
        const std::byte* in[kMaxFusedInputs];
        for (size_t k = 0; k < count; ++k) {
          in[k] = p[k] + (at[k + 1] + (step[k] ? i : 0)) * bytes[k];
        }
        run_block(chain, in, step.data(), scratch, p[count] + (at[0] + i) * out_bytes,
                  std::min(kBlockElements, loop.inner - i));
      }
    });
  };
  return make_kernel(InPlace::kYes, std::move(run), scratch_bytes);
}

}  // namespace piper::cpu
