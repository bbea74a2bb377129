// Fused: pointwise ops in one pass over memory. expr is a postfix program over a stack, its words
// apart by spaces:
//   3            pushes input 3, broadcast to the shape of the outputs
//   Add, Cast:f32, Gelu:tanh   takes its operands from the stack (the last one on top) and pushes
//   the result =2           names the top of the stack 2 and leaves it there
//   @2           pushes what was named 2
// What is on the stack at the end are the outputs, the first at the bottom; they have one shape.
// "0 1 Add =0 @0 Mul @0" makes (in0 + in1)² and in0 + in1.
#include <algorithm>
#include <charconv>

#include "chain.h"
#include "dtypes.h"
#include "families.h"
#include "loop.h"

namespace piper::cpu {
namespace {

constexpr size_t kMaxSteps = 1024, kMaxNames = 1024;

// Turns the text into steps.
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
    PIPER_WANT(stack_.size() == use_.outputs.size(), "expr leaves {} values", stack_.size());
    for (size_t o = 0; o < stack_.size(); ++o) {
      PIPER_WANT(stack_[o].source.step >= 0, "expr has no op");
      Step& step = chain_[static_cast<size_t>(stack_[o].source.step)];
      PIPER_WANT(step.output < 0, "expr leaves one value twice");
      step.output = static_cast<int16_t>(o);
      PIPER_WANT(step.type == use_.outputs[o].dtype, "expr makes {}, not {}", info(step.type).name,
                 info(use_.outputs[o].dtype).name);
    }
    return std::move(chain_);
  }

 private:
  struct Entry {
    Source source;
    DType type = DType::kF32;
  };

  static std::optional<size_t> number(std::string_view text) {
    size_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return value;
  }

  Status token_step(const std::string& token) {
    if (const auto input = number(token)) {
      PIPER_WANT(*input < use_.inputs.size(), "no such input");
      stack_.push_back({{static_cast<int16_t>(*input), -1}, use_.inputs[*input].dtype});
      return ok_status();
    }
    if (token[0] == '=' || token[0] == '@') return name_step(token);
    const size_t colon = std::min(token.find(':'), token.size());
    const std::string op = token.substr(0, colon);
    return op_step(op, colon < token.size() ? token.substr(colon + 1) : "");
  }

  Status name_step(const std::string& token) {
    const auto name = number(std::string_view(token).substr(1));
    PIPER_WANT(name && *name < kMaxNames, "not a name");
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
    PIPER_WANT(chain_.size() < kMaxSteps, "has more than {} ops", kMaxSteps);
    Step step;
    step.count = static_cast<int>(count);
    std::array<DType, kMaxBlockOperands> types{};
    for (size_t i = 0; i < count; ++i) {
      const Entry& entry = stack_[stack_.size() - count + i];
      step.operands[i] = entry.source;
      types[i] = entry.type;
    }
    PIPER_ASSIGN(const Block block, find_block(op, option, std::span(types).first(count)));
    step.run = block.run;
    step.type = block.type;
    stack_.resize(stack_.size() - count);
    stack_.push_back({{-1, static_cast<int16_t>(chain_.size())}, step.type});
    chain_.push_back(step);
    return ok_status();
  }

  const Use& use_;
  Chain chain_;
  std::vector<Entry> stack_;
  std::vector<std::optional<Entry>> names_;
};

Result<KernelPtr> make_fused(const Use& use) {
  PIPER_ASSIGN(Chain chain, Parser(use).parse(use.attrs.text("expr")));
  return chain_kernel(use, std::move(chain));
}

}  // namespace

std::vector<KernelRow> fused_kernels() { return {{"Fused", make_fused, kTakesHalves}}; }

}  // namespace piper::cpu
