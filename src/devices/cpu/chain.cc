// Kernels of chains: several pointwise ops over a block that stays in the first cache.
#include "chain.h"

#include <algorithm>
#include <cstring>

#include "loop.h"

namespace piper::cpu {
namespace {

constexpr int64_t kBlockElements = 1024;
constexpr int64_t kSlotBytes = kBlockElements * 8;
constexpr size_t kMaxInputs = kMaxOperands - 1;

// Says what of an input a block needs.
enum class Form : uint8_t {
  kStream,  // its elements, as they lie
  kOne,     // one element for the whole row
  kPeriod,  // small rows: the same elements for every row
  kColumn,  // small rows: one element for each row
};

// Hands out blocks of scratch that several things use one after the other.
class Slots {
 public:
  int16_t take() {
    const auto free = std::find(used_.begin(), used_.end(), false);
    const auto slot = static_cast<int16_t>(free - used_.begin());
    if (free == used_.end()) used_.push_back(true);
    used_[static_cast<size_t>(slot)] = true;
    return slot;
  }
  void give(int16_t slot) { used_[static_cast<size_t>(slot)] = false; }
  int64_t bytes() const { return static_cast<int64_t>(used_.size()) * kSlotBytes; }

 private:
  std::vector<bool> used_;
};

struct Layout {
  Loop loop;  // over the output, then the inputs
  size_t inputs = 0, outputs = 0;
  std::vector<Form> form;             // by input
  std::vector<int64_t> input_bytes;   // of an element
  std::vector<int64_t> output_bytes;  // of an element
  std::vector<int16_t> step_slot;     // by step; -1 for outputs
  std::vector<int16_t> input_slot;    // by input: for kPeriod, kColumn and `late` ones; else -1
  std::vector<bool> late;             // read by a step after one that makes an output
  int64_t rows_at_once = 0;           // > 0: small rows, several to a block
  int64_t scratch_bytes = 0;
};

void place_slots(const Chain& chain, Layout& layout) {
  Slots slots;
  std::vector<size_t> last_use(chain.size());
  size_t first_output = chain.size();
  layout.late.assign(layout.inputs, false);
  for (size_t s = 0; s < chain.size(); ++s) {
    for (int i = 0; i < chain[s].count; ++i) {
      const Source source = chain[s].operands[static_cast<size_t>(i)];
      if (source.step >= 0) last_use[static_cast<size_t>(source.step)] = s;
      if (source.input >= 0 && s > first_output)
        layout.late[static_cast<size_t>(source.input)] = true;
    }
    if (chain[s].output >= 0) first_output = std::min(first_output, s);
  }
  layout.input_slot.assign(layout.inputs, -1);
  for (size_t i = 0; i < layout.inputs; ++i) {
    const bool copied = layout.form[i] == Form::kPeriod || layout.form[i] == Form::kColumn;
    if (copied || layout.late[i]) layout.input_slot[i] = slots.take();
  }
  layout.step_slot.assign(chain.size(), -1);
  for (size_t s = 0; s < chain.size(); ++s) {
    // It is taken before those of the operands are given back: their elements may differ in size.
    if (chain[s].output < 0) layout.step_slot[s] = slots.take();
    for (size_t t = 0; t < s; ++t)
      if (last_use[t] == s && layout.step_slot[t] >= 0) slots.give(layout.step_slot[t]);
  }
  layout.scratch_bytes = slots.bytes();
}

// Takes several rows at a time that are shorter than a block, when every operand allows it.
void find_forms(Layout& layout) {
  const Loop& loop = layout.loop;
  const int64_t inner = loop.inner;
  for (size_t i = 0; i < layout.inputs; ++i)
    layout.form.push_back(loop.inner_steps[i + 1] != 0 ? Form::kStream : Form::kOne);
  if (loop.outer.size() != 1 || inner == 0 || inner > kBlockElements / 2) return;
  std::vector<Form> form;
  for (size_t k = 0; k <= layout.inputs; ++k) {
    const int64_t outer = loop.outer_steps[k][0], step = loop.inner_steps[k];
    if (step == 1 && outer == inner) {
      form.push_back(Form::kStream);
    } else if (outer == 0) {
      form.push_back(step == 1 ? Form::kPeriod : Form::kOne);
    } else if (step == 0 && outer == 1) {
      form.push_back(Form::kColumn);
    } else {
      return;
    }
  }
  layout.form.assign(form.begin() + 1, form.end());
  layout.rows_at_once = kBlockElements / inner;
}

class ChainKernel {
 public:
  ChainKernel(Chain chain, Layout layout) : chain_(std::move(chain)), layout_(std::move(layout)) {}

  int64_t units() const {
    const Loop& loop = layout_.loop;
    if (layout_.rows_at_once > 0)
      return (loop.rows + layout_.rows_at_once - 1) / layout_.rows_at_once;
    return loop.rows * blocks_in_row();
  }

  void operator()(Pointers p, std::byte* scratch, int64_t begin, int64_t end) const {
    if (layout_.rows_at_once > 0) return small_rows(p, scratch, begin, end);
    const int64_t blocks = blocks_in_row();
    if (blocks == 0) return;
    int64_t block = begin % blocks;
    const int64_t last_row = (end + blocks - 1) / blocks;
    layout_.loop.each_row(begin / blocks, last_row, [&](const int64_t* at) {
      for (; block < blocks && begin < end; ++block, ++begin) {
        const int64_t i = block * kBlockElements;
        Block of{};
        for (size_t k = 0; k < layout_.inputs; ++k) {
          of.step[k] = layout_.form[k] == Form::kStream;
          of.in[k] = p[k] + (at[k + 1] + (of.step[k] ? i : 0)) * layout_.input_bytes[k];
        }
        run_block(of, p, at[0] + i, std::min(kBlockElements, layout_.loop.inner - i), scratch);
      }
      block = 0;
    });
  }

 private:
  struct Block {
    const std::byte* in[kMaxInputs];
    bool step[kMaxInputs];
  };
  int64_t blocks_in_row() const {
    return (layout_.loop.inner + kBlockElements - 1) / kBlockElements;
  }
  std::byte* slot(std::byte* scratch, int16_t index) const { return scratch + index * kSlotBytes; }

  // Writes out[i] = row[i % inner], or one element of `from` for each row.
  static void repeat(const std::byte* from, int64_t bytes, int64_t rows, int64_t inner,
                     std::byte* to) {
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(to + r * inner * bytes, from, static_cast<size_t>(inner * bytes));
  }
  template <class T>
  static void spread_as(const std::byte* from, int64_t rows, int64_t inner, std::byte* to) {
    const T* one = reinterpret_cast<const T*>(from);
    T* out = reinterpret_cast<T*>(to);
    for (int64_t r = 0; r < rows; ++r) std::fill_n(out + r * inner, inner, one[r]);
  }
  static void spread(const std::byte* from, int64_t bytes, int64_t rows, int64_t inner,
                     std::byte* to) {
    if (bytes == 1) return spread_as<uint8_t>(from, rows, inner, to);
    if (bytes == 2) return spread_as<uint16_t>(from, rows, inner, to);
    if (bytes == 4) return spread_as<uint32_t>(from, rows, inner, to);
    spread_as<uint64_t>(from, rows, inner, to);
  }

  void small_rows(Pointers p, std::byte* scratch, int64_t begin, int64_t end) const {
    const int64_t inner = layout_.loop.inner, at_once = layout_.rows_at_once;
    for (size_t k = 0; k < layout_.inputs; ++k)
      if (layout_.form[k] == Form::kPeriod)
        repeat(p[k], layout_.input_bytes[k], at_once, inner, slot(scratch, layout_.input_slot[k]));
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t row = unit * at_once;
      const int64_t rows = std::min(at_once, layout_.loop.rows - row);
      Block of{};
      for (size_t k = 0; k < layout_.inputs; ++k) {
        const int64_t bytes = layout_.input_bytes[k];
        of.step[k] = layout_.form[k] != Form::kOne;
        of.in[k] = p[k];
        if (layout_.form[k] == Form::kStream) of.in[k] += row * inner * bytes;
        if (layout_.form[k] == Form::kColumn)
          spread(p[k] + row * bytes, bytes, rows, inner, slot(scratch, layout_.input_slot[k]));
        if (layout_.form[k] == Form::kPeriod || layout_.form[k] == Form::kColumn)
          of.in[k] = slot(scratch, layout_.input_slot[k]);
      }
      run_block(of, p, row * inner, rows * inner, scratch);
    }
  }

  // `first` is the block's first element in the outputs.
  void run_block(Block& of, Pointers p, int64_t first, int64_t n, std::byte* scratch) const {
    const Pointers out = p + layout_.inputs;
    // What is still to be read when an output has been stored over it is kept aside. That may be
    // one element for all, too, where there is one in all.
    for (size_t k = 0; k < layout_.inputs; ++k) {
      const bool lies = layout_.form[k] == Form::kStream || layout_.form[k] == Form::kOne;
      if (!layout_.late[k] || !lies) continue;
      if (std::find(out, out + layout_.outputs, p[k]) == out + layout_.outputs) continue;
      std::byte* kept = slot(scratch, layout_.input_slot[k]);
      const int64_t count = of.step[k] ? n : 1;
      std::memcpy(kept, of.in[k], static_cast<size_t>(count * layout_.input_bytes[k]));
      of.in[k] = kept;
    }
    for (size_t s = 0; s < chain_.size(); ++s) {
      const Step& step = chain_[s];
      const std::byte* operands[kMaxBlockOperands];
      bool steps[kMaxBlockOperands];
      for (size_t i = 0; i < static_cast<size_t>(step.count); ++i) {
        const Source source = step.operands[i];
        steps[i] = source.input < 0 || of.step[source.input];
        operands[i] = source.input >= 0
                          ? of.in[source.input]
                          : result(static_cast<size_t>(source.step), out, first, scratch);
      }
      step.run(operands, steps, result(s, out, first, scratch), n);
    }
  }
  std::byte* result(size_t s, Pointers out, int64_t first, std::byte* scratch) const {
    const int16_t output = chain_[s].output;
    if (output < 0) return slot(scratch, layout_.step_slot[s]);
    return out[output] + first * layout_.output_bytes[static_cast<size_t>(output)];
  }

  Chain chain_;
  Layout layout_;
};

}  // namespace

Result<KernelPtr> chain_kernel(const Use& use, Chain chain) {
  Layout layout;
  layout.inputs = use.inputs.size();
  layout.outputs = use.outputs.size();
  std::vector<std::vector<int64_t>> strides{row_major(use.out())};
  for (size_t i = 0; i < layout.inputs; ++i) {
    layout.input_bytes.push_back(info(use.inputs[i].dtype).bytes);
    std::vector<int64_t> own = spread_strides(use.in(i), use.out());
    strides.push_back(std::move(own));
  }
  for (const TensorType& output : use.outputs)
    layout.output_bytes.push_back(info(output.dtype).bytes);
  layout.loop = make_loop(use.out(), strides);
  find_forms(layout);
  place_slots(chain, layout);
  const int64_t scratch_bytes = layout.scratch_bytes;
  const double work = static_cast<double>(chain.size()) *
                      std::min<double>(kBlockElements, static_cast<double>(layout.loop.inner)) / 10;
  ChainKernel kernel(std::move(chain), std::move(layout));
  const int64_t units = kernel.units();
  return make_units_kernel(InPlace::kYes, units, work, std::move(kernel), scratch_bytes);
}

}  // namespace piper::cpu
