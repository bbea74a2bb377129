// Checks each instruction before anything walks it: that its args fit its kind.
#include "check_instruction.h"

#include <algorithm>

#include "bad.h"
#include "files.h"

namespace piper {
namespace {

// Checks one list of instructions, one instruction after another.
class InstructionCheck {
 public:
  InstructionCheck(const RoleProgram& role, const ArgSizes& sizes,
                   const std::vector<Instruction>& list, size_t id)
      : role_(role), sizes_(sizes), id_(id), one_(list[id]) {}

  Status run() const {
    for (int32_t arg : one_.args)
      if (role_.tensor(arg).host && one_.kind != InstructionKind::kCopy)
        return wrong("buffer '{}' is on the host, where only copies reach it",
                     quote_control(role_.name(arg)));
    for (size_t i = 0; i < one_.waits.size(); ++i)
      if (!in_range(one_.waits[i], id_) || (i > 0 && one_.waits[i - 1] >= one_.waits[i]))
        return wrong("it does not wait for earlier instructions, in ascending order");
    PIPER_TRY(check_micros());
    PIPER_TRY(check_kind());
    PIPER_TRY(check_args());
    PIPER_TRY(check_apart());
    return check_sums();
  }

 private:
  template <class... Args>
  Error wrong(fmt::format_string<Args...> text, Args&&... args) const {
    return bad("instruction {} '{}' ({}): {}", id_, quote_control(one_.label), to_string(one_.kind),
               fmt::format(fmt::runtime(text), std::forward<Args>(args)...));
  }
  bool is_message() const {
    return one_.kind == InstructionKind::kSend || one_.kind == InstructionKind::kRecv;
  }
  const TensorType& type(size_t arg) const { return role_.tensor(one_.args[arg]).type; }
  int64_t elements(size_t arg) const { return sizes_.buffers[one_.args[arg]].elements; }

  Status needs_args(size_t count) const {
    if (one_.args.size() == count) return ok_status();
    return wrong("it has {} args instead of {}", one_.args.size(), count);
  }

  Status check_args() const {
    if (info(one_.kind).args == ArgForm::kPieces) return check_all_reduce();
    if (takes_pairs(one_.kind)) return check_pairs();
    switch (one_.kind) {
      case InstructionKind::kCompute:
        return check_compute();
      case InstructionKind::kInput:
        return check_input();
      case InstructionKind::kSend:
      case InstructionKind::kRecv:
        return check_message();
      case InstructionKind::kCopy:
        return check_copy();
      case InstructionKind::kPosition:
        return check_position();
      default:
        break;
    }
    PIPER_CHECK(false, "no instruction is of kind {}", static_cast<int>(one_.kind));
  }

  Status check_micros() const {
    if (one_.micros == 1) return ok_status();
    const bool joins = is_message() || is_collective(one_.kind);
    const int64_t last = int64_t{one_.micro} + one_.micros - 1;
    if (one_.micros < 1 || one_.micro < 0 || !joins || last >= INT32_MAX)
      return wrong("it cannot be of {} microbatches", one_.micros);
    const size_t parts = static_cast<size_t>(one_.micros) * (takes_pairs(one_.kind) ? 2 : 1);
    if (takes_index(one_.kind) || one_.args.size() % parts != 0)
      return wrong("{} microbatches cannot share its {} args", one_.micros, one_.args.size());
    return ok_status();
  }

  // Fields that belong to another kind stay empty: what is not executed must not be there to be
  // believed.
  Status check_kind() const {
    const bool compute = one_.kind == InstructionKind::kCompute,
               input = one_.kind == InstructionKind::kInput;
    if (compute != (one_.program >= 0))
      return wrong("a compute instruction, and no other, has a program");
    const bool position = one_.kind == InstructionKind::kPosition;
    if ((is_collective(one_.kind) || takes_pairs(one_.kind) || position) != (one_.group >= 0))
      return wrong("a collective, and nothing else, has a group");
    if (one_.group >= 0 && !moves_runs() && !std::ranges::is_sorted(role_.groups[one_.group].axes))
      return wrong("its group does not name ascending mesh axes");
    if (is_message() ? one_.peer.size() != role_.mesh.size() : !one_.peer.empty())
      return wrong("a send or receive, and nothing else, has a peer coordinate per axis");
    PIPER_TRY(check_communicator());
    const bool rotates = info(one_.kind).args == ArgForm::kTurns;
    if (rotates ? one_.dim != -1 || one_.turn < 1 : !position && one_.turn != 0)
      return wrong("it cannot be of the member {} before", one_.turn);
    if (one_.fast && (!info(one_.kind).adds || one_.reduction != Reduction::kSum))
      return wrong("it adds nothing up that could be fast");
    if (takes_pairs(one_.kind) ? one_.dim < 0 && one_.outer != 1
                               : one_.dim != -1 || (!position && one_.outer != 1))
      return wrong("it cannot have blocks of dim {} in {} stretches", one_.dim, one_.outer);
    if (info(one_.kind).args == ArgForm::kExchanges ? !has_two_dims()
                                                    : one_.to_dim != -1 || one_.to_outer != 1)
      return wrong("it cannot have blocks of dim {} in {} stretches", one_.to_dim, one_.to_outer);
    const bool pairs = one_.dim >= 0 && one_.outer % 2 == 0;
    if ((one_.mirrored && !pairs && !position) ||
        (one_.to_mirrored && (one_.to_dim < 0 || one_.to_outer % 2 != 0)))
      return wrong("it cannot have every second stretch from its end");
    if (takes_index(one_.kind) ? one_.dim < 0 || one_.owned < 1 : one_.owned != 0)
      return wrong("a member cannot own {} numbers of an index", one_.owned);
    if (one_.kind != InstructionKind::kAllReduce && one_.reduction != Reduction::kSum)
      return wrong("it has a reduction");
    PIPER_TRY(check_blocks());
    PIPER_TRY(check_slice());
    const bool of_samples = input || !one_.contributions.empty();
    if ((!input && !one_.input.empty()) ||
        (!of_samples && (one_.samples.count != 0 || one_.samples.first != 0)))
      return wrong("it loads no data, but names samples");
    if (!compute &&
        !(one_.contributions.empty() && one_.combines.empty() && one_.sum_reads.empty()))
      return wrong("it computes nothing, but declares sums");
    return ok_status();
  }

  // Runs may follow one another in another order than that of ranks; sums and blocks do not.
  bool moves_runs() const {
    const bool takes = takes_pairs(one_.kind) && !info(one_.kind).adds;
    return takes && (one_.dim < 0 || one_.exchanges_runs());
  }

  // Returns whether an exchange has two dims, or runs of values and dim 0.
  bool has_two_dims() const {
    return one_.exchanges_runs()
               ? one_.dim + one_.to_dim == -1 && one_.outer == 1 && one_.to_outer == 1
               : one_.dim != one_.to_dim;
  }

  Status check_slice() const {
    if (one_.first == 0 && one_.count == 0) return ok_status();
    const bool scatters = one_.kind == InstructionKind::kReduceScatter && one_.dim < 0 &&
                          one_.scaled == Scaled::kNone;
    if ((one_.kind != InstructionKind::kAllReduce && !scatters) ||
        one_.args.size() != (scatters ? 2 : 1))
      return wrong("only a sum of one tensor, or of flat runs of it, may be of a slice");
    const int64_t elements = num_elements(type(one_.args.size() - 1).shape);
    if (one_.first < 0 || one_.count < 1 || one_.count >= elements ||
        one_.first > elements - one_.count)
      return wrong("{} elements from {} on are no slice of {}", one_.count, one_.first, elements);
    return ok_status();
  }

  // Checks what travels in 8 bits: runs of floats that are not there already, as they are rounded.
  Status check_blocks() const {
    if (one_.scaled == Scaled::kNone)
      return one_.block == 0 ? ok_status()
                             : wrong("it has blocks of {} without a type", one_.block);
    const bool reduces = one_.kind == InstructionKind::kReduceScatter;
    if ((one_.kind != InstructionKind::kAllGather && !reduces) || one_.dim >= 0 || one_.fast)
      return wrong("it moves no flat runs that could travel in blocks");
    if (!is_block(one_.block)) return wrong("it cannot have blocks of {}", one_.block);
    for (size_t a = 0; a < one_.args.size(); ++a) {
      const Tensor& tensor = role_.tensor(one_.args[a]);
      if (!info(tensor.type.dtype).is_float ||
          (a % 2 == 1 && !reduces && tensor.kind != BufferKind::kStep))
        return wrong("'{}' is no float that could be rounded",
                     quote_control(role_.name(one_.args[a])));
    }
    return ok_status();
  }

  // Checks that the communicator is that of its group, or of its peer and the right direction, on
  // its stream.
  Status check_communicator() const {
    if ((is_message() || is_collective(one_.kind)) != (one_.communicator >= 0))
      return wrong("a message or collective, and nothing else, has a communicator");
    if (one_.communicator < 0) return ok_status();
    const Communicator& own = role_.communicators[one_.communicator];
    const bool receives = one_.kind == InstructionKind::kRecv;
    const bool fits = own.is_pair() == is_message() &&
                      (own.is_pair() ? one_.peer == (receives ? own.from : own.to)
                                     : role_.groups[one_.group].axes == own.axes);
    if (!fits) return wrong("communicator {} is of other ranks", one_.communicator);
    const int32_t stream = own.streams[receives ? 1 : 0];
    if (stream != one_.stream)
      return wrong("communicator {} is of stream {}", one_.communicator, stream);
    return ok_status();
  }

  Status check_compute() const {
    const Program& program = role_.programs[one_.program];
    const std::vector<ArgSize>& taken = sizes_.programs[one_.program];
    PIPER_TRY(needs_args(taken.size()));
    for (size_t a = 0; a < one_.args.size(); ++a)
      if (sizes_.buffers[one_.args[a]] != taken[a])
        return wrong("arg {} is {} '{}', but the program takes {}", a, to_string(type(a)),
                     quote_control(role_.name(one_.args[a])), to_string(program.values[a]));
    return ok_status();
  }

  Status check_samples() const {
    const SampleRange& range = one_.samples;
    int64_t last = range.first;
    bool overflow = __builtin_add_overflow(last, range.count, &last);
    if (range.stride.size() != role_.mesh.size())
      return wrong("its samples need a stride per mesh axis");
    for (size_t a = 0; a < range.stride.size(); ++a) {
      int64_t span = 0;
      overflow = overflow ||
                 __builtin_mul_overflow(range.stride[a], role_.mesh[a].second - 1, &span) ||
                 __builtin_add_overflow(last, span, &last);
    }
    if (overflow || last > role_.batch)
      return wrong("its samples reach outside the batch of {}", role_.batch);
    return ok_status();
  }

  Status check_input() const {
    PIPER_TRY(needs_args(1));
    if (one_.input.empty()) return check_numbers();
    const auto input = std::find_if(role_.inputs.begin(), role_.inputs.end(),
                                    [&](const DataInput& each) { return each.name == one_.input; });
    if (input == role_.inputs.end())
      return wrong("there is no data input '{}'", quote_control(one_.input));
    PIPER_TRY(check_samples());
    TensorType want = input->type;
    if (input->batch_dim >= 0) want.shape[input->batch_dim] = one_.samples.count;
    if (want.dtype != type(0).dtype || num_elements(want.shape) != elements(0))
      return wrong("it loads {} into a buffer of {}", to_string(want), to_string(type(0)));
    return ok_status();
  }

  Status check_numbers() const {
    PIPER_TRY(check_samples());
    if (type(0) == TensorType{DType::kI64, {one_.samples.count}}) return ok_status();
    return wrong("it writes the numbers of {} samples into a buffer of {}", one_.samples.count,
                 to_string(type(0)));
  }

  Status check_message() const {
    return one_.args.empty() ? wrong("it moves nothing") : ok_status();
  }

  // Checks that the buffers are apart: what moves elements reads some while it writes others, in an
  // order of the backend's.
  Status check_apart() const {
    const bool pairs = takes_pairs(one_.kind);
    if (!is_message() && !is_collective(one_.kind) && !pairs) return ok_status();
    std::vector<std::pair<int32_t, bool>> args;  // and whether it only reads that
    for (size_t a = 0; a < one_.args.size(); ++a)
      args.emplace_back(one_.args[a], pairs && a % 2 == 0);
    std::sort(args.begin(), args.end());
    for (size_t a = 1; a < args.size(); ++a)
      if (args[a].first == args[a - 1].first && !(args[a].second && args[a - 1].second))
        return wrong("it {} '{}' twice", is_message() ? "moves" : "takes",
                     quote_control(role_.name(args[a].first)));
    return ok_status();
  }

  Status check_all_reduce() const {
    if (one_.args.empty()) return wrong("it reduces nothing");
    for (size_t a = 1; a < one_.args.size(); ++a)
      if (type(a).dtype != type(0).dtype) return wrong("its args have several element types");
    return ok_status();
  }

  Status check_pairs() const {
    const bool has_index = takes_index(one_.kind);
    if (has_index ? one_.args.size() != 3 : one_.args.empty() || one_.args.size() % 2 != 0)
      return wrong("it has {} args instead of {}", one_.args.size(),
                   has_index ? "a pair and an index" : "pairs");
    const size_t whole = info(one_.kind).whole == 1 ? 1 : 0;
    if (has_index) PIPER_TRY(check_index(whole));
    for (size_t k = 0; k + 1 < one_.args.size(); k += 2)
      if (type(k).dtype != type(k + 1).dtype ||
          !(info(one_.kind).args == ArgForm::kExchanges ? is_exchanged(k)
            : info(one_.kind).args == ArgForm::kTurns   ? type(k) == type(k + 1)
                                                        : fit(k + whole, k + 1 - whole)))
        return wrong("{} and {} do not fit a group of {}{}", to_string(type(k)),
                     to_string(type(k + 1)), members_of(role_, one_.group),
                     one_.dim < 0 ? "" : fmt::format(" along dim {}", one_.dim));
    if (info(one_.kind).args != ArgForm::kTurns) return ok_status();
    PIPER_TRY(needs_args(2));
    return check_turn();
  }
  // Checks an index: a number for each row of the whole, whose rows its first dims count.
  Status check_index(size_t whole) const {
    const DType dtype = type(2).dtype;
    int64_t rows = 1;
    for (int32_t d = 0; d < static_cast<int32_t>(type(whole).shape.size()); ++d) {
      rows *= type(whole).shape[d];
      if (d >= one_.dim && rows == elements(2) && (dtype == DType::kI64 || dtype == DType::kI32))
        return ok_status();
    }
    return wrong("{} is no index of the rows of {} along dim {}", to_string(type(2)),
                 to_string(type(whole)), one_.dim);
  }
  // Returns whether an arg can be a member's part of another.
  bool fit(size_t whole, size_t part) const {
    const int64_t members = members_of(role_, one_.group);
    if (one_.dim < 0) return is_part(role_, elements(part), elements(whole), members);
    Shape left = type(whole).shape;
    return cut_dim(left, one_.dim, one_.outer, members) && left == type(part).shape;
  }
  // Returns whether each arg has the blocks that a member would make of the other.
  bool is_exchanged(size_t arg) const {
    const int64_t members = members_of(role_, one_.group);
    Shape from = type(arg).shape, to = type(arg + 1).shape;
    const int32_t dim = one_.dim < 0 ? 1 : one_.dim, to_dim = one_.to_dim < 0 ? 1 : one_.to_dim;
    if (one_.exchanges_runs() &&
        (from.size() != 2 || to.size() != 2 || (one_.dim < 0 ? to : from)[0] != 1))
      return false;
    return cut_dim(from, to_dim, one_.to_outer, members) && cut_dim(to, dim, one_.outer, members) &&
           from == to;
  }

  Status check_turn() const {
    const int64_t members = members_of(role_, one_.group);
    if (one_.turn < members) return ok_status();
    return wrong("there are {} members, none is {} before", members, one_.turn);
  }

  Status check_position() const {
    PIPER_TRY(needs_args(1));
    const int64_t members = members_of(role_, one_.group), count = num_elements(type(0).shape);
    int64_t end = 0;
    if (__builtin_mul_overflow(members, one_.outer, &end) ||
        __builtin_mul_overflow(end, count, &end))
      return wrong("{} times its position among {} is no number", one_.outer, members);
    PIPER_TRY(check_turn());
    const bool fits = type(0).dtype == DType::kI64 && type(0).shape.size() <= 1 &&
                      (!one_.mirrored || count % 2 == 0);
    return fits ? ok_status() : wrong("it writes numbers into {}", to_string(type(0)));
  }

  Status check_copy() const {
    PIPER_TRY(needs_args(2));
    if (type(0) != type(1))
      return wrong("it copies {} to {}", to_string(type(0)), to_string(type(1)));
    return ok_status();
  }

  Status check_sums() const {
    for (const Contribution& part : one_.contributions)
      if (part.use >= role_.sum_targets[part.target].uses)
        return wrong("it contributes to a use {} that is not there", part.use);
    if (!one_.contributions.empty()) PIPER_TRY(check_samples());
    return ok_status();
  }

  const RoleProgram& role_;
  const ArgSizes& sizes_;
  size_t id_;
  const Instruction& one_;
};

}  // namespace

Status check_instruction(const RoleProgram& role, const ArgSizes& sizes,
                         const std::vector<Instruction>& list, size_t id) {
  return InstructionCheck(role, sizes, list, id).run();
}

}  // namespace piper
