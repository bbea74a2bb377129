// Collects parameters from ranks, and puts cut ones together.
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>

#include "rank_loop.h"

namespace piper {
namespace {

constexpr const char* kCollection = "collection of parameters";
constexpr int64_t kChunk = int64_t{16} << 20;  // of what travels: each waits for the one before

// Holds what is known of a parameter: who has which elements of it.
struct Gathered {
  TensorType type;
  std::vector<std::string> names;  // its own and its aliases
  std::set<std::string> held;      // parts that somebody has
  std::vector<int64_t> parts;      // a number of each, by which its bytes are asked for
};
using ByName = std::map<std::string, Gathered>;

// Adds a part, unless somebody has it already.
void add_part(ByName& all, const ParameterView& view, int64_t number) {
  Gathered& gathered = all[view.name];
  if (gathered.names.empty()) {
    gathered.type = view.type();
    gathered.names = view.aliases;
    gathered.names.push_back(view.name);
  }
  if (gathered.held.insert(to_string(view.held)).second) gathered.parts.push_back(number);
}

void copy_part(const ParameterView& view, const std::byte* from, std::byte* whole) {
  const int64_t size = info(view.held.whole.dtype).bytes;
  view.held.for_each_run([&](const Held::Run& run) {
    std::memcpy(whole + run.whole * size, from + run.held * size,
                static_cast<size_t>(run.count * size));
  });
}

// Fills a whole parameter with its parts, by their numbers.
using FillWhole = std::function<void(const std::vector<int64_t>& parts, std::byte* whole)>;

// Returns the parameters by name, under all names; each is put together when it is asked for.
std::vector<NamedTensor> in_order(const ByName& all, const FillWhole& fill) {
  std::map<std::string, NamedTensor> by_name;
  for (const auto& [name, gathered] : all) {
    const auto bytes = static_cast<size_t>(gathered.type.bytes());
    const Bytes data = Bytes::deferred(bytes, [bytes, fill, parts = gathered.parts] {
      const auto whole = std::make_shared<std::vector<std::byte>>(bytes);
      fill(parts, whole->data());
      return Bytes{whole, whole->data(), bytes};
    });
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
constexpr std::string_view kEnd = "end", kNotYet = "not yet";  // no list of 64-bit numbers

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

  // Gives the bytes of the wanted views, one after the other. `wanted`: ascending.
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
      if (numbers.empty()) continue;
      PIPER_TRY(tell_text(control_, child, as_text(std::as_bytes(std::span(numbers)))));
      PIPER_TRY(take_chunks(child, bytes, sink));
    }
    return ok_status();
  }

  // Tells all below that nothing is wanted any more (kEnd), or nothing yet.
  Status tell(std::string_view word) {
    for (const int64_t child : control_.children()) PIPER_TRY(tell_text(control_, child, word));
    return ok_status();
  }

  // Sends what the parent wants, until it wants nothing.
  Status serve(int64_t up) {
    for (;;) {
      PIPER_ASSIGN(const std::string text, hear_text(control_, up, kCollection));
      if (text == kEnd || text == kNotYet) PIPER_TRY(tell(text));
      if (text == kEnd) return ok_status();
      if (text == kNotYet) continue;
      std::vector<int64_t> wanted(text.size() / sizeof(int64_t));
      std::memcpy(wanted.data(), text.data(), text.size());
      PIPER_TRY(offer(up, wanted));
    }
  }

 private:
  // Sends these views in chunks, each when the parent has taken the one before.
  Status offer(int64_t up, std::span<const int64_t> wanted) {
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

// Lets a thread take parameters, however long it takes with each, and meanwhile serves what it asks
// for, or tells the others that it goes on.
class Desk {
 public:
  Desk(Subtree& subtree, double timeout_s)
      : subtree_(subtree), interval_(std::min(0.5, timeout_s / 10)) {}

  // The thread calls it. It fills a whole parameter, or leaves it as it is after a failure.
  void ask(const std::vector<int64_t>& parts, std::byte* whole) {
    std::unique_lock lock(mutex_);
    parts_ = &parts, whole_ = whole;
    changed_.notify_all();
    changed_.wait(lock, [&] { return parts_ == nullptr; });
  }
  Status serve_until_done(const std::function<void()>& work);

 private:
  Status serve_next(std::unique_lock<std::mutex>& lock);

  Subtree& subtree_;
  const std::chrono::duration<double> interval_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  const std::vector<int64_t>* parts_ = nullptr;  // what is asked for
  std::byte* whole_ = nullptr;
  bool over_ = false;
};

// Puts a parameter together of parts that ranks give. `parts`: ascending.
Status take_parts(Subtree& subtree, const std::vector<int64_t>& parts, std::byte* whole) {
  auto next = parts.begin();
  std::vector<std::byte> data;  // of the next part, so far
  return subtree.give(parts, [&](std::span<const std::byte> bytes) -> Status {
    while (!bytes.empty()) {
      const ParameterView& view = subtree.views()[static_cast<size_t>(*next)];
      const size_t count = std::min(static_cast<size_t>(view.bytes()) - data.size(), bytes.size());
      data.insert(data.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(count));
      bytes = bytes.subspan(count);
      if (std::ssize(data) < view.bytes()) continue;
      copy_part(view, data.data(), whole);
      data.clear();
      ++next;
    }
    return ok_status();
  });
}

Status Desk::serve_next(std::unique_lock<std::mutex>& lock) {
  const bool waits =
      !changed_.wait_for(lock, interval_, [&] { return parts_ != nullptr || over_; });
  if (waits) return subtree_.tell(kNotYet);
  return parts_ != nullptr ? take_parts(subtree_, *parts_, whole_) : ok_status();
}

Status Desk::serve_until_done(const std::function<void()>& work) {
  Status status = ok_status();  // guarded, too
  std::thread thread;
  try {
    thread = std::thread([&] {
      Status worked = ok_status();
      try {
        work();
      } catch (const std::exception& thrown) {
        worked = fail("parameters are not saved: {}", thrown.what()).with_code(ExitCode::kStorage);
      }
      const std::lock_guard lock(mutex_);
      over_ = true;
      if (status) status = std::move(worked);
      changed_.notify_all();
    });
  } catch (const std::system_error& problem) {
    return fail("no thread to save parameters: {}", problem.what()).with_code(ExitCode::kStorage);
  }
  {
    std::unique_lock lock(mutex_);
    while (!over_) {
      if (status)
        status = serve_next(lock);
      else
        changed_.wait(lock, [&] { return parts_ != nullptr || over_; });
      if (std::exchange(parts_, nullptr) != nullptr) changed_.notify_all();
    }
  }
  thread.join();
  return status;
}

}  // namespace

std::vector<NamedTensor> collect_parameters(std::span<const Executor* const> executors) {
  std::vector<ParameterView> views;
  for (const Executor* executor : executors)
    for (ParameterView& view : executor->parameters()) views.push_back(std::move(view));
  ByName all;
  for (size_t v = 0; v < views.size(); ++v) add_part(all, views[v], static_cast<int64_t>(v));
  const auto owner = std::make_shared<const std::vector<ParameterView>>(std::move(views));
  return in_order(all, [owner](const std::vector<int64_t>& parts, std::byte* whole) {
    for (const int64_t part : parts) {
      const ParameterView& view = (*owner)[static_cast<size_t>(part)];
      copy_part(view, view.data, whole);
    }
  });
}

Status gather_parameters(const Executor& executor, Control& control, double timeout_s,
                         const std::function<void(std::span<const NamedTensor>)>& take) {
  control.set_timeout(timeout_s);
  Subtree subtree(executor.parameters(), control);
  PIPER_TRY(subtree.meet());
  if (const auto up = control.parent()) return subtree.serve(*up);
  ByName all;
  for (size_t v = 0; v < subtree.views().size(); ++v)
    add_part(all, subtree.views()[v], static_cast<int64_t>(v));
  Desk desk(subtree, timeout_s);
  const std::vector<NamedTensor> tensors = in_order(
      all, [&](const std::vector<int64_t>& parts, std::byte* whole) { desk.ask(parts, whole); });
  PIPER_TRY(desk.serve_until_done([&] { take(tensors); }));
  return subtree.tell(kEnd);
}

}  // namespace piper
