// Reads the directive `replicate`.
#include <algorithm>

#include "directives.h"
#include "foreign_words.h"
#include "sent.h"

namespace piper::fields {
namespace {

using When = Replicate::When;

// A tag of `place` stands for the devices that have the same stage, and differ in it.
Status read_over(const Field& field, const yaml::Entry& entry, const Reading& reading,
                 Replicate& out) {
  Names names = reading.names;
  names.axes.insert(names.axes.end(), names.placed.begin(), names.placed.end());
  out.over_at = entry.value.at;
  Status read = read_value(field, entry.value, {reading.scope, names, reading.strategy}, out.over);
  const bool names_tag = std::ranges::any_of(
      names.tags, [&](const std::string& tag) { return entry.value.text == tag; });
  if (read || !names_tag) return read;
  return std::move(read).error().with_note(
      "help: gradients of microbatches, chunks and shares are added up without a 'replicate', "
      "which is for ranks that have the same parameters: those of a mesh axis, or of a tag that "
      "'place' computes from the microbatch, as `tags: {dir: \"mb >= M/2\"}`");
}

// ---- shard: each kind of state is cut with those before it --------------------------------------

constexpr Word kStates[] = {{"optimizer"}, {"gradients"}, {"parameters"}};
constexpr bool Replicate::*kFlags[] = {&Replicate::shard_optimizer, &Replicate::shard_gradients,
                                       &Replicate::shard_parameters};

Status read_shard(const Field& field, const yaml::Entry& entry, const Reading& reading,
                  Replicate& out) {
  out.shard_at = entry.value.at;
  std::vector<std::string> given;
  Status read = read_value(field, entry.value, reading, given);
  if (!read)
    return std::move(read).error().with_note(fmt::format("help: {}", foreign_word("zero")));
  for (size_t kind = 0; kind < std::size(kStates); ++kind) {
    const auto is_kind = [&](const std::string& name) { return name == kStates[kind].name; };
    out.*kFlags[kind] = std::any_of(given.begin(), given.end(), is_kind);
    if (out.*kFlags[kind] && kind > 0 && !(out.*kFlags[kind - 1]))
      return fail(out.shard_at, "to shard {} without {} is not supported", kStates[kind].name,
                  kStates[kind - 1].name)
          .with_note(fmt::format(
              "help: write 'shard: [optimizer, gradients{}]': a kind is cut with those before it, "
              "also where frozen parameters have none of them",
              kind == 2 || std::ranges::count(given, "parameters") > 0 ? ", parameters" : ""));
  }
  return ok_status();
}
std::string print_shard(const Field&, const Replicate& from) {
  std::vector<std::string> names;
  for (size_t kind = 0; kind < std::size(kStates); ++kind)
    if (from.*kFlags[kind]) names.emplace_back(kStates[kind].name);
  return names.empty() ? "" : fmt::format("[{}]", join(names, ", "));
}

// How parameters are gathered is said of those that are sharded.
template <auto Value>
std::string print_gather(const Field& field, const Replicate& replicate) {
  return replicate.shard_parameters ? print_value(field, replicate.*Value) : "";
}
template <auto Value>
constexpr Member kGathers = {read_member<Value>, print_by<print_gather<Value>>};

// ---- Checks -------------------------------------------------------------------------------------

Status check_gather(const Fields& map, const Reading&, Replicate& out) {
  if (!out.shard_optimizer) return fail(map.at(), "'gather' without 'shard' gathers nothing");
  for (const char* key : {"prefetch", "when"})
    if (map[key] && !out.shard_parameters)
      return fail(map.key_at(key), "'{}' needs parameters that are sharded", key)
          .with_note("help: write 'shard: [optimizer, gradients, parameters]'");
  return check_sent(map, out.gather_in, out.lossy, out.gather_dtype_at, "parameters");
}

Status check_slice(const Replicate& out) {
  constexpr int64_t kLeastSlice = 256;  // where elements are aligned
  if (out.slice_bytes > 0 && out.slice_bytes < kLeastSlice)
    return fail(out.slice_at, "'slice' must be at least {} bytes, not {}", kLeastSlice,
                out.slice_bytes);
  return ok_status();
}

// What is reduced in blocks is added up where its parts arrive.
Status check_reduce(const Fields& map, const Reading&, Replicate& out) {
  PIPER_TRY(check_sent(map, out.reduce_in, out.reduce_lossy, out.dtype_at, "gradients"));
  const char* type = kScaledNames[static_cast<size_t>(out.reduce_in.type)];
  if (out.reduce_in.any() && !out.shard_optimizer)
    return fail(out.dtype_at, "not supported: gradients that travel in {} without 'shard'", type)
        .with_note(
            "help: with 'shard: [optimizer]' each rank adds up its part of them, and rounds no "
            "sum");
  PIPER_TRY(check_slice(out));
  if (out.slice_bytes > 0 && out.reduce_in.any())
    return fail(out.slice_at, "not supported: slices of gradients that travel in {}", type)
        .with_note("help: leave one of the two out");
  if (out.reduce_in.any() && out.sum == Replicate::Order::kFast)
    return fail(map["sum"]->at, "the device's own library adds up no gradients in {}", type)
        .with_note("help: leave 'sum' out: they are added up in order");
  if (out.reduce == When::kMicrobatch && !out.shard_gradients)
    return fail(map["when"]->at, "'per_microbatch' needs gradients that are sharded")
        .with_note("help: write 'shard: [optimizer, gradients]'");
  return ok_status();
}

Status check_replicate(const Fields& map, const Reading& reading, Replicate& out) {
  PIPER_TRY(check_where_of_ops(out.where, "replicate", {"pass"}));
  for (const Replicate& other : reading.strategy.replicates) {
    // Entries that name parameters are compared by what they name (replicas.cc).
    if (out.is_of_some() || other.is_of_some()) continue;
    const auto both =
        std::find_first_of(out.over.begin(), out.over.end(), other.over.begin(), other.over.end());
    if (both == out.over.end()) continue;
    return fail(out.over_at, "two directives replicate over '{}'", *both)
        .with_note(fmt::format("first at {}", yaml::place(other.at)))
        .with_note("help: 'match' or 'where' says which parameters a line speaks of");
  }
  if (map["persist"] && !out.shard_optimizer)
    return fail(map["persist"]->at, "'persist' without 'shard' changes nothing");
  const yaml::Entry* again = map["reduce"] ? map["reduce"]->find("stream") : nullptr;
  if (again && map["stream"])
    return fail(again->value.at, "the stream of the reductions is given twice")
        .with_note(fmt::format("first at {}", yaml::place(map["stream"]->at)));
  return ok_status();
}

// ---- Keys ---------------------------------------------------------------------------------------

constexpr Word kGatherWhen[] = {word("per_pass", When::kPass),
                                word("per_microbatch", When::kMicrobatch),
                                word("per_step", When::kStep)};
constexpr Word kReduceWhen[] = {word("per_step", When::kStep),
                                word("per_microbatch", When::kMicrobatch)};
constexpr Word kSumOrders[] = {word("ordered", Replicate::Order::kOrdered),
                               word("fast", Replicate::Order::kFast)};
constexpr Member kSliceOfSums = located<&Replicate::slice_bytes, &Replicate::slice_at>;
constexpr Member kStreamOfSums = located<&Replicate::stream, &Replicate::stream_at>;

constexpr Member kGatherType =
    kSentIn<&Replicate::gather_dtype, &Replicate::gather_in, &Replicate::gather_dtype_at>;
constexpr Member kReduceType =
    kSentIn<&Replicate::dtype, &Replicate::reduce_in, &Replicate::dtype_at>;

constexpr Field kGather[] = {
    {"prefetch", integer(0, 1024), kOptional, "Buckets gathered ahead of their use. Default 1.",
     kGathers<&Replicate::prefetch>},
    {"when", one_of(kGatherWhen), kOptional, "How often. Default per_pass.",
     kGathers<&Replicate::gather>},
    {"stream", kName, kOptional, "Stream of the gathers. Default gather.",
     located<&Replicate::gather_stream, &Replicate::gather_stream_at>},
    {"dtype", one_of(kNarrowTypes), kOptional,
     "Type in which parameters are sent. Default: the one in which they are read.", kGatherType},
    {"lossy", kBool, kOptional, "Allow rounding of parameters that are read in f32. Default false.",
     member<&Replicate::lossy>},
    {"block", kInteger, kOptional,
     "With int8 and float8: so many elements have one scale. Default 256.",
     kBlocksOf<&Replicate::gather_in>},
};
constexpr Field kReduce[] = {
    {"when", one_of(kReduceWhen), kOptional, "How often. Default per_step.",
     member<&Replicate::reduce>},
    {"dtype", one_of(kSentTypes), kOptional,
     "Type in which gradients are sent. Default: the one in which they are added up.", kReduceType},
    {"lossy", kBool, kOptional, "Allow rounding to 8 bits. Default false.",
     member<&Replicate::reduce_lossy>},
    {"block", kInteger, kOptional,
     "With int8 and float8: so many elements have one scale. Default 256.",
     kBlocksOf<&Replicate::reduce_in>},
    {"sum", one_of(kSumOrders), kOptional,
     "How they are added up: ordered (default) in rank order, with the same bits everywhere; fast "
     "by the device's own library.",
     member<&Replicate::sum>},
    {"slice", kBytes, kOptional,
     "Messages hold at most so many bytes; a larger gradient is cut. Default: any size.",
     kSliceOfSums},
    {"stream", kName, kOptional, "Stream of the reductions. Default reduce.", {kStreamOfSums.read}},
};
constexpr Field kReplicateKeys[] = {
    {"over", kAxes, kRequired,
     "A mesh axis, a tag of `place` that tells the devices of a stage apart, or several as one.",
     custom<read_over, print_member<&Replicate::over>>},
    {"match", kPaths, kOptional, "Parameters: patterns over their paths. Default: all others.",
     member<&Replicate::match>},
    {"where", kWhere, kOptional, "Parameters by the tags of the ops that read them.",
     member<&Replicate::where>},
    {"bucket", kBytes, kOptional,
     "Gradients and parameters travel in messages of at least this size.",
     member<&Replicate::bucket_bytes>},
    {"stream", kName, kOptional, "Stream of the reductions. Default reduce.", kStreamOfSums},
    {"shard", some_of(kStates), kOptional,
     "What is cut over the axis: [optimizer], [optimizer, gradients] or [optimizer, gradients, "
     "parameters].",
     custom<read_shard, print_shard>},
    {"persist", kBytes, kOptional, "Parameters smaller than this stay whole. Default 0.",
     member<&Replicate::persist_bytes>},
    {"gather", one("gather"), kOptional, "How parameters are gathered.", inside},
    {"reduce", one("reduce"), kOptional, "How gradients are summed.", inside},
};
constexpr Object kReplicateParts[] = {{"gather", kGather, checked<check_gather>},
                                      {"reduce", kReduce, checked<check_reduce>}};

}  // namespace

Directive replicate_directive() {
  return directive<&Strategy::replicates>({"replicate", kReplicateKeys, checked<check_replicate>},
                                          "Data parallelism.", kReplicateParts);
}

}  // namespace piper::fields
