// Collects parameters from ranks, and puts cut ones together.
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "rank_loop.h"

namespace piper {
namespace {

constexpr const char* kCollection = "collection of parameters";
constexpr int64_t kChunk = int64_t{16} << 20;  // of what travels: each waits for the one before

// Holds as much of a parameter as has arrived.
struct Gathered {
  TensorType type;
  std::vector<std::string> names;  // its own and its aliases
  std::vector<std::byte> data;
  std::set<std::string> held;  // of whom it has the elements
};
using ByName = std::map<std::string, Gathered>;

bool has(const ByName& all, const ParameterView& view) {
  const auto found = all.find(view.name);
  return found != all.end() && found->second.held.contains(to_string(view.held));
}

// Takes a view, unless somebody already gave it.
void take(ByName& all, const ParameterView& view) {
  if (has(all, view)) return;
  Gathered& gathered = all[view.name];
  if (gathered.names.empty()) {
    gathered.type = view.type();
    gathered.names = view.aliases;
    gathered.names.push_back(view.name);
    gathered.data.resize(static_cast<size_t>(gathered.type.bytes()));
  }
  gathered.held.insert(to_string(view.held));
  const int64_t size = info(gathered.type.dtype).bytes;
  view.held.for_each_run([&](const Held::Run& run) {
    std::memcpy(gathered.data.data() + run.whole * size, view.data + run.held * size,
                static_cast<size_t>(run.count * size));
  });
}

// Aliases share the data; nothing is copied.
std::vector<NamedTensor> in_order(ByName all) {
  std::map<std::string, NamedTensor> by_name;
  for (auto& [name, gathered] : all) {
    const auto owner = std::make_shared<const std::vector<std::byte>>(std::move(gathered.data));
    const Bytes data{owner, owner->data(), owner->size()};
    for (const std::string& each : gathered.names)
      if (each == name || !all.contains(each))
        by_name.try_emplace(each, NamedTensor{each, gathered.type, data});
  }
  std::vector<NamedTensor> tensors;
  for (auto& [name, tensor] : by_name) tensors.push_back(std::move(tensor));
  return tensors;
}

// ---- Views as bytes, between processes of one program -------------------------------------------

void put(std::string& to, int64_t value) { to.append(reinterpret_cast<const char*>(&value), 8); }
void put(std::string& to, const std::string& text) {
  put(to, static_cast<int64_t>(text.size()));
  to += text;
}

void put(std::string& to, const Held& held) {
  put(to, static_cast<int64_t>(held.whole.dtype));
  put(to, std::ssize(held.whole.shape));
  for (int64_t dim : held.whole.shape) put(to, dim);
  put(to, std::ssize(held.blocks));
  for (const auto& [dim, outer, size, index] : held.blocks)
    for (int64_t number : {int64_t{dim}, outer, size, index}) put(to, number);
  put(to, held.first);
  put(to, held.count);
}

std::string encode(std::span<const ParameterView> views) {
  std::string text;
  for (const ParameterView& view : views) {
    put(text, view.name);
    put(text, view.held);
    put(text, static_cast<int64_t>(view.aliases.size()));
    for (const std::string& alias : view.aliases) put(text, alias);
  }
  return text;
}

struct Decoder {
  std::string_view text;
  int64_t number() {
    int64_t value = 0;
    std::memcpy(&value, text.data(), 8);
    text.remove_prefix(8);
    return value;
  }
  std::string string() {
    size_t size = static_cast<size_t>(number());
    std::string value(text.substr(0, size));
    text.remove_prefix(size);
    return value;
  }
  Held held() {
    Held held;
    held.whole.dtype = static_cast<DType>(number());
    held.whole.shape.resize(static_cast<size_t>(number()));
    for (int64_t& dim : held.whole.shape) dim = number();
    held.blocks.resize(static_cast<size_t>(number()));
    for (Held::Block& block : held.blocks) {
      block.dim = static_cast<int32_t>(number());
      for (int64_t* value : {&block.outer, &block.size, &block.index}) *value = number();
    }
    held.first = number();
    held.count = number();
    return held;
  }
};

std::vector<ParameterView> decode(std::string_view text) {
  std::vector<ParameterView> views;
  for (Decoder decoder{text}; !decoder.text.empty();) {
    ParameterView& view = views.emplace_back();
    view.name = decoder.string();
    view.held = decoder.held();
    view.aliases.resize(static_cast<size_t>(decoder.number()));
    for (std::string& alias : view.aliases) alias = decoder.string();
  }
  return views;
}

// ---- Along the tree -----------------------------------------------------------------------------

using Sink = std::function<Status(std::span<const std::byte>)>;

// Lists what the rank and those below it hold, each once: its own views, then those of child after
// child.
class Subtree {
 public:
  Subtree(std::vector<ParameterView> own, Control& control) : control_(control) {
    for (ParameterView& view : own) add(std::move(view), control.rank(), 0);
  }

  // Hears what the children's subtrees hold, and says what its own does.
  Status meet() {
    for (const int64_t child : control_.children()) {
      PIPER_ASSIGN(const std::string theirs, hear_text(control_, child, kCollection));
      int64_t number = 0;
      for (ParameterView& view : decode(theirs)) add(std::move(view), child, number++);
    }
    const auto up = control_.parent();
    return up ? tell_text(control_, *up, encode(views_)) : ok_status();
  }
  const std::vector<ParameterView>& views() const { return views_; }

  // Gives the bytes of the wanted parameters, one after the other. `wanted`: ascending.
  Status give(std::span<const int64_t> wanted, const Sink& sink) {
    auto next = wanted.begin();
    for (; next != wanted.end() && source(*next) == control_.rank(); ++next) {
      const ParameterView& view = views_[static_cast<size_t>(*next)];
      PIPER_TRY(sink({view.data, static_cast<size_t>(view.bytes())}));
    }
    for (const int64_t child : control_.children()) {
      std::vector<int64_t> numbers;
      int64_t bytes = 0;
      for (; next != wanted.end() && source(*next) == child; ++next) {
        numbers.push_back(numbers_[static_cast<size_t>(*next)]);
        bytes += views_[static_cast<size_t>(*next)].bytes();
      }
      PIPER_TRY(tell_text(control_, child, as_text(std::as_bytes(std::span(numbers)))));
      PIPER_TRY(take_chunks(child, bytes, sink));
    }
    return ok_status();
  }

  // Sends what the parent wants, in chunks, each when the parent has taken the one before.
  Status offer(int64_t up) {
    PIPER_ASSIGN(const std::string text, hear_text(control_, up, kCollection));
    std::vector<int64_t> wanted(text.size() / sizeof(int64_t));
    std::memcpy(wanted.data(), text.data(), text.size());
    std::vector<std::byte> chunk;
    const auto pass = [&]() -> Status {
      std::byte taken{};
      PIPER_TRY(control_.tell(up, chunk));
      chunk.clear();
      return control_.hear(up, std::span(&taken, 1), kCollection);
    };
    PIPER_TRY(give(wanted, [&](std::span<const std::byte> bytes) -> Status {
      while (!bytes.empty()) {
        const size_t room = static_cast<size_t>(kChunk) - chunk.size(),
                     count = std::min(room, bytes.size());
        chunk.insert(chunk.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(count));
        bytes = bytes.subspan(count);
        if (count == room) PIPER_TRY(pass());
      }
      return ok_status();
    }));
    return chunk.empty() ? ok_status() : pass();
  }

 private:
  int64_t source(int64_t view) const { return sources_[static_cast<size_t>(view)]; }
  void add(ParameterView view, int64_t from, int64_t number) {
    if (!known_.insert(view.name + "\t" + to_string(view.held)).second) return;
    views_.push_back(std::move(view));
    sources_.push_back(from);
    numbers_.push_back(number);
  }
  Status take_chunks(int64_t child, int64_t bytes, const Sink& sink) {
    for (std::vector<std::byte> chunk; bytes > 0; bytes -= std::ssize(chunk)) {
      chunk.resize(static_cast<size_t>(std::min(bytes, kChunk)));
      PIPER_TRY(control_.hear(child, chunk, kCollection));
      const std::byte taken{};
      PIPER_TRY(control_.tell(child, std::span(&taken, 1)));
      PIPER_TRY(sink(chunk));
    }
    return ok_status();
  }

  Control& control_;
  std::set<std::string> known_;
  std::vector<ParameterView> views_;
  std::vector<int64_t> sources_, numbers_;  // by view: of which rank's list, and its place there
};

}  // namespace

std::vector<NamedTensor> collect_parameters(std::span<const Executor* const> executors) {
  ByName all;
  for (const Executor* executor : executors) {
    for (const ParameterView& view : executor->parameters()) take(all, view);
  }
  return in_order(std::move(all));
}

Result<std::vector<NamedTensor>> gather_parameters(const Executor& executor, Control& control) {
  Subtree subtree(executor.parameters(), control);
  PIPER_TRY(subtree.meet());
  if (const auto up = control.parent()) {
    PIPER_TRY(subtree.offer(*up));
    return std::vector<NamedTensor>{};
  }
  ByName all;
  std::vector<int64_t> wanted(subtree.views().size());
  std::iota(wanted.begin(), wanted.end(), 0);
  size_t next = 0;
  std::vector<std::byte> data;  // of the view that is next, so far
  PIPER_TRY(subtree.give(wanted, [&](std::span<const std::byte> bytes) -> Status {
    while (!bytes.empty()) {
      ParameterView view = subtree.views()[next];
      const size_t count = std::min(static_cast<size_t>(view.bytes()) - data.size(), bytes.size());
      data.insert(data.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(count));
      bytes = bytes.subspan(count);
      if (std::ssize(data) < view.bytes()) continue;
      view.data = data.data();
      take(all, view);
      data.clear();
      ++next;
    }
    return ok_status();
  }));
  return in_order(std::move(all));
}

}  // namespace piper
