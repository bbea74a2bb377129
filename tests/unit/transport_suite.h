// What every fabric of hosts must do, as cases that all ranks of a job run together. A case returns
// "" or what went wrong.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "piper/base/float16.h"
#include "piper/runtime/transport.h"
#include "sanitizer.h"

namespace piper::suite {

struct Case {
  const char* name;
  std::string (*run)(Fabric& fabric);
};

#define SUITE_OK(expr)                                                \
  do {                                                                \
    if (auto result = (expr); !result) return result.error().message; \
  } while (false)
#define SUITE_CHECK(condition)                                                 \
  do {                                                                         \
    if (!(condition)) return fmt::format("line {}: {}", __LINE__, #condition); \
  } while (false)

inline std::byte* bytes_of(void* data) { return static_cast<std::byte*>(data); }

// Every rank can compute every rank's data.
template <class T>
NOT_FOR_THREAD_SANITIZER void fill_with_data(T* values, int64_t rank, int64_t salt, int64_t count) {
  uint64_t state = static_cast<uint64_t>(rank * 1000003 + salt);
  for (int64_t i = 0; i < count; ++i) {
    uint64_t bits = state += 0x9e3779b97f4a7c15u;  // splitmix64
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
    bits ^= bits >> 31;
    if constexpr (std::is_floating_point_v<T>) {
      // Magnitudes far apart: another order of additions gives other bits.
      const double mantissa = static_cast<double>(static_cast<int64_t>(bits)) * 0x1p-63;
      values[i] = static_cast<T>(mantissa * static_cast<double>(uint64_t{1} << (bits % 30)));
    } else {
      values[i] = static_cast<T>(bits);
    }
  }
}
template <class T>
std::vector<T> data_of(int64_t rank, int64_t salt, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  fill_with_data(values.data(), rank, salt, count);
  return values;
}

template <class T>
NOT_FOR_THREAD_SANITIZER void add_data(T* total, const T* x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_floating_point_v<T>) {
      total[i] += x[i];
    } else {
      using U = std::make_unsigned_t<T>;
      total[i] = static_cast<T>(static_cast<U>(total[i]) + static_cast<U>(x[i]));
    }
  }
}
template <class T>
std::vector<T> sum_of(const std::vector<int64_t>& ranks, int64_t salt, int64_t count) {
  std::vector<T> total = data_of<T>(ranks[0], salt, count);
  for (size_t k = 1; k < ranks.size(); ++k)
    add_data(total.data(), data_of<T>(ranks[k], salt, count).data(), count);
  return total;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

inline std::vector<int64_t> everyone(const Fabric& fabric) {
  std::vector<int64_t> ranks;
  for (int64_t i = 0; i < fabric.world(); ++i) ranks.push_back(i);
  return ranks;
}

// Sizes from nothing to beyond any eager limit, round the ring, two communicators received against
// the order of sending.
inline std::string messages(Fabric& t) {
  int64_t next = (t.rank() + 1) % t.world();
  int64_t before = (t.rank() + t.world() - 1) % t.world();
  int32_t out[2], in[2];
  for (int32_t c = 0; c < 2; ++c) {
    auto send = t.add_send(next, c, 8);
    auto recv = t.add_recv(before, c);
    SUITE_OK(send);
    SUITE_OK(recv);
    out[c] = *send;
    in[c] = *recv;
  }
  const int64_t sizes[] = {0, 1, 7, 4096, 65537, (1 << 20) + 3};
  std::vector<std::vector<int32_t>> kept;
  for (int64_t size : sizes) {
    for (int32_t c = 0; c < 2; ++c) {
      kept.push_back(data_of<int32_t>(t.rank(), size + c, size));
      SUITE_OK(t.send(out[c], bytes_of(kept.back().data()), size * 4));
    }
  }
  for (int32_t c : {1, 0}) {
    for (int64_t size : sizes) {
      std::vector<int32_t> got(static_cast<size_t>(size), -1);
      SUITE_OK(t.recv(in[c], bytes_of(got.data()), size * 4));
      SUITE_CHECK(same_bits(got, data_of<int32_t>(before, size + c, size)));
    }
  }
  SUITE_OK(t.wait_sends());
  return "";
}

// Several tensors as one message, cut otherwise where it is received; between messages of one
// tensor, and of another size each time.
inline std::string joined_messages(Fabric& t) {
  int64_t next = (t.rank() + 1) % t.world();
  int64_t before = (t.rank() + t.world() - 1) % t.world();
  const auto out = t.add_send(next, 0, 8), in = t.add_recv(before, 0);
  SUITE_OK(out);
  SUITE_OK(in);
  const auto parts_of = [](std::vector<std::vector<int32_t>>& tensors) {
    std::vector<MessagePart> parts;
    for (auto& tensor : tensors)
      parts.push_back(
          {reinterpret_cast<std::byte*>(tensor.data()), static_cast<int64_t>(tensor.size()) * 4});
    return parts;
  };
  std::vector<std::vector<MessagePart>> kept;  // they stay where they are
  for (int64_t size : {1, 4096, (1 << 18) + 3}) {
    const auto elements = static_cast<size_t>(size);
    std::vector<std::vector<int32_t>> sent, got;
    for (int64_t k = 0; k < 3; ++k) sent.push_back(data_of<int32_t>(t.rank(), k, k * size));
    got.emplace_back(2 * elements, -1);
    got.emplace_back();
    got.emplace_back(elements, -1);
    kept.push_back(parts_of(sent));
    const std::span<const MessagePart> from = kept.back();
    kept.push_back(parts_of(got));
    const std::span<const MessagePart> to = kept.back();
    SUITE_OK(t.add_message(from));
    SUITE_OK(t.add_message(to));
    int32_t last = static_cast<int32_t>(t.rank()), taken = -1;
    for (int turn = 0; turn < 2; ++turn) {
      SUITE_OK(t.send(*out, from));
      SUITE_OK(t.send(*out, bytes_of(&last), 4));
      SUITE_OK(t.recv(*in, to));
      SUITE_OK(t.recv(*in, bytes_of(&taken), 4));
      SUITE_CHECK(taken == static_cast<int32_t>(before));
      std::vector<int32_t> all = got[0], want = data_of<int32_t>(before, 1, size);
      all.insert(all.end(), got[2].begin(), got[2].end());
      const std::vector<int32_t> rest = data_of<int32_t>(before, 2, 2 * size);
      want.insert(want.end(), rest.begin(), rest.end());
      SUITE_CHECK(same_bits(all, want));
      SUITE_OK(t.wait_sends());
      for (auto& tensor : got) std::fill(tensor.begin(), tensor.end(), -1);
    }
  }
  return "";
}

// A whole step's messages under way before the first is taken; three steps reuse the slots.
inline std::string many_in_flight(Fabric& t) {
  constexpr int kMessages = 500;
  int64_t next = (t.rank() + 1) % t.world();
  int64_t before = (t.rank() + t.world() - 1) % t.world();
  auto out = t.add_send(next, 5, kMessages);
  auto in = t.add_recv(before, 5);
  SUITE_OK(out);
  SUITE_OK(in);
  for (int step = 0; step < 3; ++step) {
    std::vector<int64_t> sent(kMessages);
    for (int i = 0; i < kMessages; ++i) {
      sent[static_cast<size_t>(i)] = t.rank() * 1000000 + step * 1000 + i;
      SUITE_OK(t.send(*out, bytes_of(&sent[static_cast<size_t>(i)]), 8));
    }
    for (int i = 0; i < kMessages; ++i) {
      int64_t got = -1;
      SUITE_OK(t.recv(*in, bytes_of(&got), 8));
      SUITE_CHECK(got == before * 1000000 + step * 1000 + i);
    }
    SUITE_OK(t.wait_sends());
  }
  return "";
}

// Adds a group of ranks at equal distances: a rank is in one group of each communicator.
inline Result<int32_t> group_of(Fabric& t, const std::vector<int64_t>& ranks) {
  int32_t communicator = 0;
  if (ranks.size() == 1) communicator = 1;
  if (ranks.size() > 1 && std::ssize(ranks) < t.world())
    communicator = static_cast<int32_t>(1 + ranks[1] - ranks[0]);
  return t.add_group(ranks, communicator);
}

// Of all types as one message, sizes that no number of ranks divides, larger than any staging.
inline std::string all_reduce_in(Fabric& t, const std::vector<int64_t>& ranks, int64_t large) {
  auto group = group_of(t, ranks);
  SUITE_OK(group);
  for (int64_t salt = 0; salt < 2; ++salt) {
    auto a = data_of<float>(t.rank(), salt, large);
    auto b = data_of<double>(t.rank(), salt + 10, 33);
    auto c = data_of<int64_t>(t.rank(), salt + 20, 5);
    auto d = data_of<int32_t>(t.rank(), salt + 30, 1);
    auto e = data_of<float>(t.rank(), salt + 40, 1);
    const Piece pieces[] = {{bytes_of(d.data()), DType::kI32, 1},
                            {bytes_of(a.data()), DType::kF32, large},
                            {bytes_of(b.data()), DType::kF64, 33},
                            {bytes_of(c.data()), DType::kI64, 5},
                            {bytes_of(e.data()), DType::kF32, 1}};
    SUITE_OK(t.run(*group, {.kind = InstructionKind::kAllReduce, .pieces = pieces}));
    SUITE_CHECK(same_bits(a, sum_of<float>(ranks, salt, large)));
    SUITE_CHECK(same_bits(b, sum_of<double>(ranks, salt + 10, 33)));
    SUITE_CHECK(same_bits(c, sum_of<int64_t>(ranks, salt + 20, 5)));
    SUITE_CHECK(same_bits(d, sum_of<int32_t>(ranks, salt + 30, 1)));
    SUITE_CHECK(same_bits(e, sum_of<float>(ranks, salt + 40, 1)));
  }
  return "";
}
// 16-bit floats are added in f32 and rounded once: not after each rank.
inline std::string all_reduce_of_halves(Fabric& t) {
  const std::vector<int64_t> ranks = everyone(t);
  auto group = group_of(t, ranks);
  SUITE_OK(group);
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    constexpr int64_t kCount = 3001;
    const int64_t part_count = (kCount + t.world() - 1) / t.world();
    const auto halves_of = [&](int64_t rank) {
      std::vector<uint16_t> halves(static_cast<size_t>(kCount));
      const auto wide = data_of<float>(rank, 5, kCount);
      round_to_halves(dtype, wide.data(), bytes_of(halves.data()), kCount);
      return halves;
    };
    std::vector<float> sum(static_cast<size_t>(kCount));
    for (size_t r = 0; r < ranks.size(); ++r) {
      const auto theirs = halves_of(ranks[r]);
      for (size_t i = 0; i < sum.size(); ++i) {
        const float value = float_of_half(dtype, theirs[i]);
        sum[i] = r == 0 ? value : sum[i] + value;
      }
    }
    std::vector<uint16_t> want(sum.size()), own = halves_of(t.rank());
    round_to_halves(dtype, sum.data(), bytes_of(want.data()), kCount);
    const Piece piece{bytes_of(own.data()), dtype, kCount};
    SUITE_OK(t.run(*group, {.kind = InstructionKind::kAllReduce, .pieces = std::span(&piece, 1)}));
    SUITE_CHECK(same_bits(own, want));
    own = halves_of(t.rank());
    std::vector<uint16_t> part(static_cast<size_t>(part_count), 7);
    const Shard shard{bytes_of(own.data()), bytes_of(part.data()), dtype, kCount, part_count};
    SUITE_OK(
        t.run(*group, {.kind = InstructionKind::kReduceScatter, .shards = std::span(&shard, 1)}));
    want.resize(static_cast<size_t>(t.world() * part_count));
    SUITE_CHECK(std::equal(part.begin(), part.end(), want.begin() + t.rank() * part_count));
  }
  return "";
}
inline std::string all_reduce(Fabric& t) { return all_reduce_in(t, everyone(t), 300001); }
inline std::string small_all_reduce(Fabric& t) { return all_reduce_in(t, everyone(t), 3); }
inline std::string one_member(Fabric& t) { return all_reduce_in(t, {t.rank()}, 17); }
inline std::string subgroups(Fabric& t) {
  std::vector<int64_t> ranks;  // of the own parity
  for (int64_t i = t.rank() % 2; i < t.world(); i += 2) ranks.push_back(i);
  return all_reduce_in(t, ranks, 1000);
}

inline std::string reduce_scatter_in(Fabric& t, const std::vector<int64_t>& ranks, int64_t part,
                                     int64_t missing = 0) {
  auto group = group_of(t, ranks);
  SUITE_OK(group);
  int64_t n = static_cast<int64_t>(ranks.size());
  int64_t own = std::find(ranks.begin(), ranks.end(), t.rank()) - ranks.begin();
  const int64_t count = n * part - missing;  // the last part is padded with zeros
  auto whole = data_of<float>(t.rank(), 3, count);
  std::vector<float> got(static_cast<size_t>(part));
  std::fill(got.begin(), got.end(), 7.0f);
  Shard shard{bytes_of(whole.data()), bytes_of(got.data()), DType::kF32, count, part};
  SUITE_OK(
      t.run(*group, {.kind = InstructionKind::kReduceScatter, .shards = std::span(&shard, 1)}));
  auto sum = sum_of<float>(ranks, 3, count);
  sum.resize(static_cast<size_t>(n * part));
  auto first = sum.begin() + own * part;
  SUITE_CHECK(same_bits(got, std::vector<float>(first, first + part)));
  // In two slices, of which each leaves the elements of the other as they are.
  std::fill(got.begin(), got.end(), 7.0f);
  for (const int64_t begin : {int64_t{0}, part / 3}) {
    const int64_t end = begin == 0 && part >= 3 ? part / 3 : part;
    Shard slice = shard;
    slice.first = begin, slice.slice = end - begin;
    SUITE_OK(
        t.run(*group, {.kind = InstructionKind::kReduceScatter, .shards = std::span(&slice, 1)}));
    SUITE_CHECK(std::all_of(got.begin() + end, got.end(), [](float one) { return one == 7.0f; }));
  }
  SUITE_CHECK(same_bits(got, std::vector<float>(first, first + part)));
  sum.resize(static_cast<size_t>(count));
  std::vector<float> gathered(static_cast<size_t>(count));
  shard.whole = bytes_of(gathered.data());
  SUITE_OK(t.run(*group, {.kind = InstructionKind::kAllGather, .shards = std::span(&shard, 1)}));
  SUITE_CHECK(same_bits(gathered, sum));
  // In place: the own part already lies in the whole.
  std::vector<float> whole_again(static_cast<size_t>(n * part));
  std::copy(got.begin(), got.end(), whole_again.begin() + own * part);
  shard.whole = bytes_of(whole_again.data());
  shard.part = bytes_of(whole_again.data() + own * part);
  SUITE_OK(t.run(*group, {.kind = InstructionKind::kAllGather, .shards = std::span(&shard, 1)}));
  whole_again.resize(static_cast<size_t>(count));
  SUITE_CHECK(same_bits(whole_again, sum));
  return "";
}
inline std::string reduce_scatter(Fabric& t) {
  std::string wrong = reduce_scatter_in(t, everyone(t), 13);
  if (wrong.empty()) wrong = reduce_scatter_in(t, everyone(t), 70001);
  if (wrong.empty()) wrong = reduce_scatter_in(t, {t.rank()}, 13);
  if (wrong.empty()) wrong = reduce_scatter_in(t, everyone(t), 13, 5);
  if (wrong.empty()) wrong = reduce_scatter_in(t, everyone(t), 1, t.world() - 1);
  if (wrong.empty()) wrong = reduce_scatter_in(t, everyone(t), 70001, 3);
  return wrong;
}

// Member k's blocks of a whole of `stretches` times one run a member, in every second one from its
// end.
template <class T>
std::vector<T> block_of(const std::vector<T>& whole, int64_t k, int64_t members, int64_t stretches,
                        bool mirrored = false) {
  const int64_t run = std::ssize(whole) / members / stretches;
  std::vector<T> block;
  block.reserve(whole.size() / static_cast<size_t>(members));
  for (int64_t stretch = 0; stretch < stretches; ++stretch) {
    const bool from_end = mirrored && stretch % 2 != 0;
    const auto first = whole.begin() + (stretch * members + (from_end ? members - 1 - k : k)) * run;
    block.insert(block.end(), first, first + run);
  }
  return block;
}

// Blocks beside flat parts in one message: runs of one element and runs that travel in pieces.
inline std::string blocks_in(Fabric& t, const std::vector<int64_t>& ranks) {
  auto group = group_of(t, ranks);
  SUITE_OK(group);
  const int64_t members = std::ssize(ranks);
  const int64_t own = std::find(ranks.begin(), ranks.end(), t.rank()) - ranks.begin();
  const std::tuple<int64_t, int64_t, bool> forms[] = {
      // stretches, elements of a run, mirrored
      {1, 5, false},     {2, 1, false},    {3000, 1, true},  {7, 13, false}, {1, 70001, false},
      {3, 30011, false}, {40, 997, false}, {2, 30011, true}, {40, 997, true}};
  struct Tensor {
    std::vector<double> whole, part, gathered;
  };
  std::vector<Tensor> tensors;
  std::vector<Shard> shards;
  for (const auto& [stretches, run, mirrored] : forms) {
    const int64_t part = stretches * run, salt = std::ssize(tensors);
    tensors.push_back({data_of<double>(t.rank(), salt, members * part),
                       std::vector<double>(static_cast<size_t>(part), 7.0),
                       std::vector<double>(static_cast<size_t>(members * part), 7.0)});
    shards.push_back({nullptr, nullptr, DType::kF64, members * part, part, stretches, mirrored});
  }
  for (size_t k = 0; k < shards.size(); ++k) {
    shards[k].whole = bytes_of(tensors[k].whole.data());
    shards[k].part = bytes_of(tensors[k].part.data());
  }
  SUITE_OK(t.run(*group, {.kind = InstructionKind::kReduceScatter, .shards = shards}));
  for (size_t k = 0; k < shards.size(); ++k) shards[k].whole = bytes_of(tensors[k].gathered.data());
  SUITE_OK(t.run(*group, {.kind = InstructionKind::kAllGather, .shards = shards}));
  for (size_t k = 0; k < shards.size(); ++k) {
    const auto salt = static_cast<int64_t>(k);
    const auto sum = sum_of<double>(ranks, salt, shards[k].count);
    const auto part_of = [&](int64_t i) {
      return block_of(sum, i, members, shards[k].stretches, shards[k].mirrored);
    };
    const auto part = part_of(own);
    SUITE_CHECK(same_bits(tensors[k].part, part));
    SUITE_CHECK(same_bits(tensors[k].gathered, sum));
    SUITE_CHECK(same_bits(tensors[k].whole, data_of<double>(t.rank(), salt, shards[k].count)));
    take_part(shards[k], (own + 1) % members);
    SUITE_CHECK(same_bits(tensors[k].part, part_of((own + 1) % members)));
  }
  return "";
}
inline std::string blocks(Fabric& t) {
  std::string wrong = blocks_in(t, everyone(t));
  if (wrong.empty()) wrong = blocks_in(t, {t.rank()});
  return wrong;
}

// Says how a tensor is cut in blocks of 8 bits: the last parts lack so many elements.
struct BlocksForm {
  int64_t part, missing;
  InBlocks blocks;
  int64_t count(int64_t members) const { return members * part - missing; }
};
// Returns messages of one tensor or of several.
inline std::vector<std::vector<BlocksForm>> blocks_messages(int64_t members) {
  const InBlocks int8{Scaled::kInt8, 64}, float8{Scaled::kFloat8, 32}, large{Scaled::kInt8, 1024};
  return {{{1, 0, int8}, {64, 3, int8}, {1000, 999, int8}, {70001, 1, int8}},
          {{5, 2, float8}, {33, 0, float8}},
          {{1, 0, int8}, {3, members * 3 - 2, int8}},  // nothing is left for the last members
          {{kSanitized ? 120'001 : 600'001, 7, large}}};
}
using Floats = std::vector<std::vector<float>>;
inline std::vector<Shard> shards_of(const std::vector<BlocksForm>& message, int64_t members,
                                    Floats& wholes, Floats& parts) {
  std::vector<Shard> shards;
  for (size_t k = 0; k < message.size(); ++k)
    shards.push_back({bytes_of(wholes[k].data()), bytes_of(parts[k].data()), DType::kF32,
                      message[k].count(members), message[k].part, 1, false, message[k].blocks});
  return shards;
}

// Parts travel in blocks of 8 bits: all wholes have them rounded, the own one, too.
inline std::string in_blocks_in(Fabric& t, const std::vector<int64_t>& ranks) {
  auto group = group_of(t, ranks);
  SUITE_OK(group);
  const int64_t members = std::ssize(ranks);
  for (const std::vector<BlocksForm>& message : blocks_messages(members)) {
    Floats parts, wholes, wanted;
    for (const BlocksForm& f : message) {
      const int64_t count = f.count(members), salt = 50 + std::ssize(parts);
      parts.push_back(data_of<float>(t.rank(), salt, f.part));
      wholes.emplace_back(static_cast<size_t>(count), 7.0F);
      std::vector<float>& all = wanted.emplace_back();
      for (int64_t i = 0; i < members; ++i) {
        const int64_t there = std::clamp<int64_t>(count - i * f.part, 0, f.part);
        auto part = data_of<float>(ranks[static_cast<size_t>(i)], salt, f.part);
        // Past the end there are zeros.
        std::fill(part.begin() + there, part.end(), 0.0F);
        if (ranks[static_cast<size_t>(i)] == t.rank()) parts.back() = part;
        round_in_blocks(f.blocks, DType::kF32, bytes_of(part.data()), f.part,
                        bytes_of(part.data()));
        all.insert(all.end(), part.begin(), part.begin() + there);
      }
    }
    const std::vector<Shard> shards = shards_of(message, members, wholes, parts);
    SUITE_OK(t.run(*group, {.kind = InstructionKind::kAllGather, .shards = shards}));
    for (size_t k = 0; k < shards.size(); ++k) SUITE_CHECK(same_bits(wholes[k], wanted[k]));
  }
  return "";
}
// Terms travel in blocks of 8 bits, and are added up in rank order; the sum is not rounded.
inline std::string sums_of_blocks_in(Fabric& t, const std::vector<int64_t>& ranks) {
  auto group = group_of(t, ranks);
  SUITE_OK(group);
  const int64_t members = std::ssize(ranks);
  const int64_t own = std::ranges::find(ranks, t.rank()) - ranks.begin();
  for (const std::vector<BlocksForm>& message : blocks_messages(members)) {
    Floats parts, wholes, wanted;
    for (const BlocksForm& f : message) {
      const int64_t count = f.count(members), salt = 70 + std::ssize(parts);
      wholes.push_back(data_of<float>(t.rank(), salt, count));
      parts.emplace_back(static_cast<size_t>(f.part), 7.0F);
      std::vector<float>& sum = wanted.emplace_back(static_cast<size_t>(f.part), 0.0F);
      const int64_t there = std::clamp<int64_t>(count - own * f.part, 0, f.part);
      for (int64_t i = 0; i < members; ++i) {
        auto term = data_of<float>(ranks[static_cast<size_t>(i)], salt, count);
        float* const its = term.data() + std::min(own * f.part, count);
        round_in_blocks(f.blocks, DType::kF32, bytes_of(its), there, bytes_of(its));
        for (int64_t k = 0; k < there; ++k)
          sum[static_cast<size_t>(k)] = i == 0 ? its[k] : sum[static_cast<size_t>(k)] + its[k];
      }
    }
    const std::vector<Shard> shards = shards_of(message, members, wholes, parts);
    SUITE_OK(t.run(*group, {.kind = InstructionKind::kReduceScatter, .shards = shards}));
    for (size_t k = 0; k < shards.size(); ++k) SUITE_CHECK(same_bits(parts[k], wanted[k]));
  }
  return "";
}
inline std::string in_blocks(Fabric& t) {
  std::string wrong;
  for (const auto& ranks : {everyone(t), std::vector<int64_t>{t.rank()}})
    for (const auto& each : {in_blocks_in, sums_of_blocks_in})
      if (wrong.empty()) wrong = each(t, ranks);
  return wrong;
}

// A mesh [2, world / 2]: the groups of both axes take turns, those of the outer one are no
// neighbours.
inline std::string two_axes(Fabric& t) {
  const int64_t half = t.world() / 2, n = 12 * t.world();
  if (t.world() % 2 != 0) return "";
  const auto outer_of = [&](int64_t i) { return std::vector<int64_t>{i, half + i}; };
  std::vector<int64_t> inner;
  for (int64_t i = 0; i < half; ++i) inner.push_back(t.rank() / half * half + i);
  auto outer_group = group_of(t, outer_of(t.rank() % half)), inner_group = group_of(t, inner);
  SUITE_OK(outer_group);
  SUITE_OK(inner_group);
  // [6, n] is summed over the outer axis, cut along dim 1, then over the inner one, along dim 0.
  auto whole = data_of<float>(t.rank(), 1, 6 * n);
  std::vector<float> half_of_it(static_cast<size_t>(3 * n)), part(half_of_it.size() / size_t(half));
  const Shard by_outer{
      bytes_of(whole.data()), bytes_of(half_of_it.data()), DType::kF32, 6 * n, 3 * n, 6};
  const Shard by_inner{bytes_of(half_of_it.data()), bytes_of(part.data()), DType::kF32, 3 * n,
                       3 * n / half};
  SUITE_OK(t.run(*outer_group,
                 {.kind = InstructionKind::kReduceScatter, .shards = std::span(&by_outer, 1)}));
  SUITE_OK(t.run(*inner_group,
                 {.kind = InstructionKind::kReduceScatter, .shards = std::span(&by_inner, 1)}));
  std::vector<float> sum = sum_of<float>(outer_of(0), 1, 6 * n);
  for (int64_t i = 1; i < half; ++i) {
    const auto next = sum_of<float>(outer_of(i), 1, 6 * n);
    for (size_t e = 0; e < sum.size(); ++e) sum[e] += next[e];
  }
  const auto want = block_of(block_of(sum, t.rank() / half, 2, 6), t.rank() % half, half, 1);
  SUITE_CHECK(same_bits(part, want));
  SUITE_OK(t.run(*inner_group,
                 {.kind = InstructionKind::kAllGather, .shards = std::span(&by_inner, 1)}));
  SUITE_OK(t.run(*outer_group,
                 {.kind = InstructionKind::kAllGather, .shards = std::span(&by_outer, 1)}));
  SUITE_CHECK(same_bits(whole, sum));
  return "";
}

template <class T>
std::string greatest_in(Fabric& t, int32_t group, DType dtype, int64_t count) {
  auto own = data_of<T>(t.rank(), 6, count), want = data_of<T>(0, 6, count);
  for (int64_t rank = 1; rank < t.world(); ++rank) {
    const auto theirs = data_of<T>(rank, 6, count);
    for (size_t i = 0; i < want.size(); ++i) want[i] = std::max(want[i], theirs[i]);
  }
  const Piece piece{bytes_of(own.data()), dtype, count, Reduction::kMax};
  SUITE_OK(t.run(group, {.kind = InstructionKind::kAllReduce, .pieces = std::span(&piece, 1)}));
  SUITE_CHECK(same_bits(own, want));
  return "";
}

// The greatest, of numbers below zero too; what is no number stays so, whoever has it. Beside a sum
// in one message.
inline std::string greatest(Fabric& t) {
  auto group = t.add_group(everyone(t));
  SUITE_OK(group);
  for (const int64_t count : {int64_t{1}, int64_t{kSanitized ? 70001 : 300001}}) {
    std::string wrong = greatest_in<float>(t, *group, DType::kF32, count);
    if (wrong.empty()) wrong = greatest_in<double>(t, *group, DType::kF64, count);
    if (wrong.empty()) wrong = greatest_in<int32_t>(t, *group, DType::kI32, count);
    if (wrong.empty()) wrong = greatest_in<int64_t>(t, *group, DType::kI64, count);
    if (!wrong.empty()) return wrong;
  }
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const float own = static_cast<float>(t.rank()) - 8;
    std::vector<uint16_t> half(1), want(1);
    round_to_halves(dtype, &own, bytes_of(half.data()), 1);
    const float last = static_cast<float>(t.world()) - 9;
    round_to_halves(dtype, &last, bytes_of(want.data()), 1);
    const Piece piece{bytes_of(half.data()), dtype, 1, Reduction::kMax};
    SUITE_OK(t.run(*group, {.kind = InstructionKind::kAllReduce, .pieces = std::span(&piece, 1)}));
    SUITE_CHECK(same_bits(half, want));
  }
  for (int64_t who = 0; who < t.world(); ++who) {
    float value = t.rank() == who ? std::nanf("") : static_cast<float>(t.rank()), one = 1;
    const Piece pieces[] = {{bytes_of(&value), DType::kF32, 1, Reduction::kMax},
                            {bytes_of(&one), DType::kF32, 1}};
    SUITE_OK(t.run(*group, {.kind = InstructionKind::kAllReduce, .pieces = pieces}));
    SUITE_CHECK(std::isnan(value));
    SUITE_CHECK(one == static_cast<float>(t.world()));
  }
  return "";
}

// Many tensors in one message, some of them larger than what travels at once.
inline std::string reduce_scatter_of_many(Fabric& t) {
  const std::vector<int64_t> ranks = everyone(t);
  auto group = group_of(t, ranks);
  SUITE_OK(group);
  struct Tensor {
    std::vector<double> whole, part, gathered;
  };
  std::vector<Tensor> tensors;
  std::vector<Shard> shards;
  for (int64_t k = 0; k < 90; ++k) {
    const int64_t part = k % 30 == 7 ? 50000 : 1 + k * 5 % 23;
    const int64_t count = t.world() * part - k % (part + 1) % 3;
    const auto size = static_cast<size_t>(part);
    tensors.push_back({data_of<double>(t.rank(), k, count), std::vector<double>(size, 7.0),
                       std::vector<double>(static_cast<size_t>(count))});
  }
  for (Tensor& tensor : tensors)
    shards.push_back({bytes_of(tensor.whole.data()), bytes_of(tensor.part.data()), DType::kF64,
                      static_cast<int64_t>(tensor.whole.size()),
                      static_cast<int64_t>(tensor.part.size())});
  SUITE_OK(t.run(*group, {.kind = InstructionKind::kReduceScatter, .shards = shards}));
  for (size_t k = 0; k < tensors.size(); ++k)
    shards[k].whole = bytes_of(tensors[k].gathered.data());
  SUITE_OK(t.run(*group, {.kind = InstructionKind::kAllGather, .shards = shards}));
  for (size_t k = 0; k < tensors.size(); ++k) {
    const auto count = static_cast<int64_t>(tensors[k].whole.size());
    SUITE_CHECK(
        same_bits(tensors[k].gathered, sum_of<double>(ranks, static_cast<int64_t>(k), count)));
  }
  return "";
}

// A dim in blocks becomes whole and another one is in blocks, of each of several stretches.
inline std::string all_to_all_in(Fabric& t, const std::vector<int64_t>& ranks) {
  auto group = group_of(t, ranks);
  SUITE_OK(group);
  const int64_t n = std::ssize(ranks), size = 4;
  const int64_t own = std::find(ranks.begin(), ranks.end(), t.rank()) - ranks.begin();
  struct Form {
    int64_t before, joined_outer, joined, between, cut_outer, cut, run;
  };
  struct Tensor {
    std::vector<int32_t> from, to, wanted;
  };
  std::vector<Tensor> tensors;
  std::vector<Exchange> exchanges;
  for (const Form& f : {Form{1, 1, 1, 1, 1, 1, 1},
                        {1, 1, 1, 1, 1, 1, 20011},
                        {3, 2, 1, 2, 3, 2, 5},
                        {1, 1, 3, 1, 1, 7, 26003}}) {
    const int64_t inner = f.run * size, from_cut = f.cut_outer * n * f.cut,
                  to_cut = f.cut_outer * f.cut, joined = f.joined_outer * f.joined,
                  from_row = f.between * from_cut * inner, to_row = f.between * to_cut * inner;
    const auto whole =
        data_of<int32_t>(0, std::ssize(tensors), f.before * joined * n * from_row / size);
    const auto from = block_of(whole, own, n, f.before * f.joined_outer),
               to = block_of(whole, own, n, f.before * joined * n * f.between * f.cut_outer);
    tensors.push_back({from, std::vector<int32_t>(to.size(), 7), to});
    Exchange one;
    one.loops = {{f.before, joined * from_row, n * joined * to_row},
                 {f.joined_outer, f.joined * from_row, n * f.joined * to_row},
                 {f.joined, from_row, to_row},
                 {f.between, from_cut * inner, to_cut * inner},
                 {f.cut_outer, n * f.cut * inner, f.cut * inner},
                 {f.cut, inner, inner}};
    one.run = inner;
    one.from_block = f.cut * inner;
    one.to_block = f.joined * to_row;
    exchanges.push_back(one);
  }
  for (size_t k = 0; k < tensors.size(); ++k) {
    exchanges[k].from = bytes_of(tensors[k].from.data());
    exchanges[k].to = bytes_of(tensors[k].to.data());
  }
  SUITE_OK(t.run(*group, {.kind = InstructionKind::kAllToAll, .exchanges = exchanges}));
  for (const Tensor& tensor : tensors) SUITE_CHECK(tensor.to == tensor.wanted);
  return "";
}
inline std::string all_to_all(Fabric& t) {
  std::string wrong = all_to_all_in(t, everyone(t));
  if (wrong.empty()) wrong = all_to_all_in(t, {t.rank()});
  return wrong;
}

// Longer than a segment, and round the end of the circle.
inline std::string rotate(Fabric& t) {
  auto group = t.add_group(everyone(t));
  SUITE_OK(group);
  const int64_t n = t.world();
  for (int32_t turn = 1; turn < n; turn += 3)
    for (const int64_t count : {int64_t{1}, int64_t{100'007}}) {
      const auto from = data_of<double>(t.rank(), turn, count);
      std::vector<double> to(static_cast<size_t>(count));
      const Turn one{reinterpret_cast<const std::byte*>(from.data()), bytes_of(to.data()),
                     count * 8, turn};
      SUITE_OK(t.run(*group, {.kind = InstructionKind::kRotate, .turns = std::span(&one, 1)}));
      SUITE_CHECK(same_bits(to, data_of<double>((t.rank() + n - turn) % n, turn, count)));
    }
  return "";
}

// Rows go to the members that own what an index names, and come back: spread over all, all to one,
// or to nobody.
template <class I>
std::string rows_in(Fabric& t, const std::vector<int64_t>& ranks, int64_t width) {
  auto group = group_of(t, ranks);
  SUITE_OK(group);
  const int64_t n = std::ssize(ranks), numbers = 3 * n, count = 2 * n * 5;
  const int64_t own = std::find(ranks.begin(), ranks.end(), t.rank()) - ranks.begin();
  const auto all = data_of<int32_t>(0, width, count * width);
  const auto part = block_of(all, own, n, 2);
  for (const char* goes : {"spread", "to one", "to nobody"}) {
    std::vector<I> index;
    for (int64_t r = 0; r < count; ++r)
      index.push_back(static_cast<I>(goes[0] == 's'   ? r * 7919 % numbers - (r % 4 ? 0 : numbers)
                                     : goes[3] == 'o' ? numbers - 1
                                                      : numbers));
    std::vector<int32_t> whole(all.size(), 7), wanted(all.size()), back(part.size(), 7);
    for (int64_t r = 0; r < count; ++r) {
      const int64_t at =
          index[static_cast<size_t>(r)] + (index[static_cast<size_t>(r)] < 0 ? numbers : 0);
      if (at / 3 == own) std::copy_n(all.begin() + r * width, width, wanted.begin() + r * width);
    }
    Rows rows{bytes_of(whole.data()),
              bytes_of(const_cast<int32_t*>(part.data())),
              bytes_of(index.data()),
              sizeof(I) == 8,
              count,
              width * 4,
              2,
              n,
              3};
    SUITE_OK(t.run(*group, {.kind = InstructionKind::kDispatch, .rows = std::span(&rows, 1)}));
    SUITE_CHECK(whole == wanted);
    rows.part = bytes_of(back.data());
    SUITE_OK(t.run(*group, {.kind = InstructionKind::kCombine, .rows = std::span(&rows, 1)}));
    const bool lost = goes[3] == 'n';
    SUITE_CHECK(back == (lost ? std::vector<int32_t>(part.size(), -1) : part));
  }
  return "";
}
inline std::string rows(Fabric& t) {
  std::string wrong = rows_in<int64_t>(t, everyone(t), 5);
  if (wrong.empty()) wrong = rows_in<int32_t>(t, everyone(t), 40009);
  if (wrong.empty()) wrong = rows_in<int64_t>(t, {t.rank()}, 5);
  return wrong;
}

// Nobody leaves a barrier that not all have reached: rank 0's message of this round is always
// there.
inline std::string barriers(Control& control) {
  for (int i = 0; i < 200; ++i) SUITE_OK(control.barrier());
  return "";
}

inline std::string wrong_registration(Fabric& t) {
  auto self = t.add_send(t.rank(), 0, 1);
  SUITE_CHECK(!self.ok());
  SUITE_CHECK(self.error().message ==
              fmt::format("rank {0} of {1} has no peer of rank {0}", t.rank(), t.world()));
  const int64_t strangers[] = {t.world() + 1};
  auto group = t.add_group(strangers);
  SUITE_CHECK(!group.ok());
  SUITE_CHECK(group.error().message == fmt::format("rank {} of {} cannot join the group [{}]",
                                                   t.rank(), t.world(), t.world() + 1));
  return "";
}

inline constexpr Case kCases[] = {
    {"messages", messages},
    {"joined_messages", joined_messages},
    {"many_in_flight", many_in_flight},
    {"all_reduce", all_reduce},
    {"subgroups", subgroups},
    {"one_member", one_member},
    {"small_all_reduce", small_all_reduce},
    {"all_reduce_of_halves", all_reduce_of_halves},
    {"all_to_all", all_to_all},
    {"rows", rows},
    {"reduce_scatter", reduce_scatter},
    {"reduce_scatter_of_many", reduce_scatter_of_many},
    {"blocks", blocks},
    {"in_blocks", in_blocks},
    {"two_axes", two_axes},
    {"greatest", greatest},
    {"rotate", rotate},
    {"wrong_registration", wrong_registration},
};

// ---- Faults: what each rank sees
// ------------------------------------------------------------------ A fault makes an error on the
// ranks it concerns; the text is what they must say ("" for the others).

// The last rank takes no part.
inline Status dropped_sender(Control&, Fabric& t) {
  int64_t last = t.world() - 1;
  if (t.rank() == last) return ok_status();
  PIPER_ASSIGN(int32_t route, t.add_recv(last, 7));
  int64_t value = 0;
  return t.recv(route, bytes_of(&value), 8);
}
inline Status dropped_member(Control&, Fabric& t) {
  if (t.rank() == t.world() - 1) return ok_status();
  PIPER_ASSIGN(int32_t group, t.add_group(everyone(t)));
  float value = 0;
  const Piece pieces[] = {{bytes_of(&value), DType::kF32, 1}};
  return t.run(group, {.kind = InstructionKind::kAllReduce, .pieces = pieces});
}
// Rank 0 sends to rank 1, which never takes it (large, so that no transport holds it in a buffer).
inline Status dropped_receiver(Control&, Fabric& t) {
  if (t.rank() != 0) return ok_status();
  static std::vector<std::byte> data(1 << 20);
  PIPER_ASSIGN(int32_t route, t.add_send(1, 2, 1));
  PIPER_TRY(t.send(route, data.data(), 1 << 20));
  return t.wait_sends();
}
// Rank 0 sends 16 bytes, rank 1 wants 8.
inline Status wrong_size(Control&, Fabric& t) {
  static int64_t values[2] = {1, 2};
  if (t.rank() == 0) {
    PIPER_ASSIGN(int32_t route, t.add_send(1, 2, 1));
    return t.send(route, bytes_of(values), 16);
  }
  if (t.rank() != 1) return ok_status();
  PIPER_ASSIGN(int32_t route, t.add_recv(0, 2));
  int64_t value = 0;
  return t.recv(route, bytes_of(&value), 8);
}
// Rank 1 fails; the others wait for it, with a deadline far away.
inline Status aborted(Control& control, Fabric& t) {
  if (t.rank() == 1) {
    control.abort(fail("the disk is full").with_code(ExitCode::kStorage));
    return ok_status();
  }
  return control.barrier();
}

// Rank 3 is stuck; rank 2 waits for it, 1 for 2 and 0 for 1: whoever speaks first names rank 3, and
// what it was about.
inline Status chain(Control& control, Fabric& t) {
  if (t.rank() == 3) {
    control.activity().store("F stage=3 mb=1");
    return ok_status();
  }
  PIPER_ASSIGN(int32_t route, t.add_recv(t.rank() + 1, 5));
  control.activity().store("recv");
  int64_t value = 0;
  return t.recv(route, bytes_of(&value), 8);
}
// The same, but for ranks that wait for each other: nobody of them is to blame.
inline Status ring(Control& control, Fabric& t) {
  PIPER_ASSIGN(int32_t route, t.add_recv((t.rank() + 1) % t.world(), 5));
  control.activity().store("recv");
  int64_t value = 0;
  return t.recv(route, bytes_of(&value), 8);
}

struct Fault {
  const char* name;
  double timeout_s;
  Status (*run)(Control& control, Fabric& fabric);
  const char* expected;  // of rank 0 (rank 1 for wrong_size), of 4
  const char* note = nullptr;
};
inline constexpr Fault kFaults[] = {
    {"dropped_sender", 0.5, dropped_sender,
     "rank 0 waited 0.5 s for a message on communicator 7 from rank 3"},
    {"dropped_member", 0.5, dropped_member,
     "rank 0 waited 0.5 s in the all-reduce of ranks [0,1,2,3] for rank 3"},
    {"dropped_receiver", 0.5, dropped_receiver,
     "rank 0 waited 0.5 s for a message on communicator 2 to be taken by rank 1"},
    {"wrong_size", 30, wrong_size,
     "rank 1 expects 8 bytes on communicator 2 from rank 0, which brings "},
    {"aborted", 30, aborted, "rank 0 stopped because rank 1 failed: the disk is full"},
    {"chain", 1, chain, "which waits for rank 3", "rank 3 is at F stage=3 mb=1"},
    {"ring", 1, ring, "which waits for rank 0", "they wait for each other"},
};

}  // namespace piper::suite
