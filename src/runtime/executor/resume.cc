// Checks that the checkpoint that a run begins with is one of the same training, and that those
// that it will write have a place. Called before the ranks load.
#include "resume.h"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <set>
#include <thread>

#include "holders.h"
#include "piper/base/counted.h"
#include "piper/ir/optimizers.h"
#include "piper/plan/sites.h"

namespace piper {
namespace {

namespace fs = std::filesystem;
using How = StartOptions::How;
constexpr size_t kShown = 8;  // of what differs

// ---- Is it of the same training? ----------------------------------------------------------------

// Says what becomes of the states of the plans and of the checkpoint's tensors.
struct Loading {
  int64_t loaded = 0, of_model = 0;     // the latter are parameters and buffers
  std::vector<std::string> derived;     // begin as their parameter does
  std::vector<std::string> fresh;       // begin with the plans' initial values
  std::vector<std::string> parameters;  // those of them that are parameters or buffers of the model
  std::vector<std::string> ignored;     // of the checkpoint
  // Those of `fresh` and `ignored` that a resumed job may lack or bring: previous versions and
  // loss scales depend on the strategy only.
  std::set<std::string> free;
  std::vector<std::string> converted;  // loaded from another type
  std::vector<std::string> different;  // of another shape: sentences
  // The state that counts updates, and how many of parameters' optimizers go on and begin afresh.
  std::string count;
  int64_t going_on = 0, begun = 0;
  std::set<std::string> states;  // of the plans, so far
  std::set<std::string> taken;   // of the checkpoint, by these
};

// Returns whether the updates are counted from 0, since no optimizer's state goes on.
bool counts_afresh(const StartOptions& asked, const Loading& loading) {
  return asked.how == How::kBranch && loading.going_on == 0 && loading.begun > 0 &&
         !loading.count.empty();
}

// Returns whether the state counts steps or updates; a parameter of the model may be called so,
// too.
bool is_count(const std::string& name) {
  return name == "step" || name == "updates" || counts_outer_updates(name);
}
bool is_loss_scale(const std::string& name) {
  return name == "loss_scale" || name == "loss_scale.good";
}

void add_state(const RoleProgram& role, const Tensor& tensor, const CheckpointReader& reader,
               bool weights_only, Loading& loading) {
  std::vector<std::string> names = names_of_state(role, tensor);
  if (!loading.states.insert(names[0]).second) return;
  const bool is_optimizers = tensor.init.empty() && tensor.previous_of < 0;
  const bool is_of_job = is_optimizers && role.original(tensor).param.empty() &&
                         (is_loss_scale(names[0]) || is_count(names[0]));
  // Where random ops need a count of all steps, "step" is that, and "updates" counts the updates.
  if (is_of_job && (names[0] == "updates" || (names[0] == "step" && loading.count.empty())))
    loading.count = names[0];
  if (weights_only) names.erase(names.begin(), names.begin() + role.age(tensor));
  const auto has = [&](const std::string& name) { return reader.types().contains(name); };
  const auto found = std::find_if(names.begin(), names.end(), has);
  if (found == names.end() || (weights_only && tensor.init.empty())) {
    const bool is_model = !tensor.init.empty() && tensor.previous_of < 0;
    (is_model ? loading.parameters : loading.fresh).push_back(names[0]);
    if (tensor.previous_of >= 0 || (is_of_job && is_loss_scale(names[0])))
      loading.free.insert(names[0]);
    if (is_optimizers && !is_of_job) ++loading.begun;
    return;
  }
  loading.of_model += tensor.init.empty() ? 0 : 1;
  if (is_optimizers && !is_of_job && !names[0].ends_with(kAverage)) ++loading.going_on;
  loading.taken.insert(names.begin(), names.end());
  const TensorType& stored = reader.types().at(*found);
  if (stored.shape != tensor.whole_type().shape)
    loading.different.push_back(fmt::format("'{}' is {} in the checkpoint and {} in the plans",
                                            quote_control(*found), to_string(stored),
                                            to_string(tensor.whole_type())));
  if (stored.dtype != tensor.type.dtype)
    loading.converted.push_back(fmt::format("{} ({} to {})", *found, info(stored.dtype).name,
                                            info(tensor.type.dtype).name));
  const auto site = site_of(names[0]);
  const bool is_derived =
      tensor.previous_of >= 0 || names[0].ends_with(kAverage) || (site && site->name == *found);
  if (is_derived && found != names.begin())
    loading.derived.push_back(names[0]);
  else
    ++loading.loaded;
}

Loading compare_states(const PlanSet& set, const CheckpointReader& reader, bool weights_only) {
  Loading loading;
  for (const RoleProgram& role : set.roles)
    for (const Tensor& tensor : role.tensors) {
      if (is_stored(tensor)) add_state(role, tensor, reader, weights_only, loading);
    }
  for (const NamedTensor& tensor : untouched_of(set)) loading.taken.insert(tensor.name);
  for (const auto& [name, type] : reader.types())
    if (!loading.taken.contains(name)) loading.ignored.push_back(name);
  for (const CheckpointState& state : reader.about().states)
    if (state.kind == StateKind::kPrevious ||
        (state.kind == StateKind::kOptimizer && is_loss_scale(state.name)))
      loading.free.insert(state.name);
  return loading;
}

void add_names(Error& error, const std::vector<std::string>& names, const std::string& what) {
  for (size_t k = 0; k < std::min(names.size(), kShown); ++k)
    error.notes.push_back(fmt::format("'{}' {}", quote_control(names[k]), what));
  if (names.size() > kShown)
    error.notes.push_back(fmt::format("and {} more", names.size() - kShown));
}

// Checks that the checkpoint fits the plans that go on, which are in the folder `now`.
Status check_states(const StartOptions& asked, const Start& start, const Loading& loading,
                    const std::string& now) {
  const bool resumes = asked.how == How::kResume || asked.how == How::kResumeOrStart;
  std::vector<std::string> fresh = loading.parameters, ignored = loading.ignored;
  if (asked.how != How::kInit)  // which takes no states
    fresh.insert(fresh.end(), loading.fresh.begin(), loading.fresh.end());
  const auto is_free = [&](const std::string& name) { return loading.free.contains(name); };
  std::erase_if(fresh, is_free);
  std::erase_if(ignored, is_free);
  const bool is_other = loading.of_model == 0 && !loading.parameters.empty();
  const bool matches = loading.loaded > 0 && !is_other && loading.different.empty() &&
                       (!resumes || (fresh.empty() && ignored.empty()));
  if (matches) return ok_status();
  const std::string& folder = start.reader->folder();
  Error error = usage(start.is_running
                          ? fmt::format("--switch: {} trains something else than {}", folder, now)
                          : fmt::format("{} is no checkpoint of what these plans train", folder));
  const char* const before = start.is_running ? "the plans before" : "the checkpoint";
  for (size_t k = 0; k < std::min(loading.different.size(), kShown); ++k)
    error.notes.push_back(loading.different[k]);
  add_names(error, fresh, fmt::format("is not in {}", before));
  add_names(error, ignored, fmt::format("is in {}, and the plans have no such state", before));
  if (resumes && !start.is_running && loading.different.empty() && loading.loaded > 0)
    error.notes.push_back(
        "help: --branch goes on with what both have and begins the rest afresh, which it lists");
  return error;
}

void tell_loading(const Start& start, const RunOptions& options, const Loading& loading) {
  const StartOptions& asked = options.start;
  const int64_t count = loading.loaded + std::ssize(loading.derived);
  std::string text = fmt::format("{}: {} ", start.reader->folder(), counted(count, "tensor"));
  if (start.is_running)
    text += fmt::format("{} on under other plans after step {}", count == 1 ? "goes" : "go",
                        start.step);
  else
    text += "loaded";
  if (!start.is_running && asked.how != How::kInit)
    text += fmt::format(", {} step {}", options.evaluate_only ? "of" : "goes on after", start.step);
  tell_user(text);
  const auto list = [](const std::vector<std::string>& names, const char* what) {
    if (names.empty()) return;
    const size_t shown = std::min(names.size(), kShown);
    std::string line =
        fmt::format("{} {}: {}", names.size(), what, join(std::span(names).first(shown), ", "));
    if (names.size() > shown) line += fmt::format(" and {} more", names.size() - shown);
    tell_user(quote_control(line));
  };
  list(loading.converted, "are rounded or widened");
  list(loading.derived, "begin as their parameters do");
  list(loading.parameters, "parameters or buffers are not there, and keep the values of the plans");
  list(loading.fresh, "begin afresh");
  if (counts_afresh(asked, loading))
    tell_user(
        "no state of an optimizer goes on: updates are counted from 0, for the learning rate and "
        "for what the optimizer corrects by their number");
  else if (!loading.fresh.empty() && !start.is_running && start.step > 0)
    tell_user(
        "the count of updates goes on: the learning rate, and what an optimizer corrects by it, "
        "are those of the step; --init begins it afresh");
  list(loading.ignored, "of the checkpoint are ignored");
}

std::string list_changes(std::vector<std::string> said) {
  if (said.empty()) said.emplace_back("the same files, in another form or order");
  const size_t more = said.size() - std::min(said.size(), kShown);
  return fmt::format(" ({}{})", join(std::span(said).first(said.size() - more), ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

// Says which files have another content than before: " (FILE has another content)". A file that was
// only moved has not.
std::string changed_files(const std::vector<std::pair<std::string, std::string>>& before,
                          const std::vector<std::pair<std::string, std::string>>& now) {
  std::map<std::string, std::string> old(before.begin(), before.end());
  std::set<std::string> contents, here;
  for (const auto& [path, content] : before) contents.insert(content);
  for (const auto& [path, content] : now) here.insert(content);
  std::vector<std::string> said;
  for (const auto& [path, content] : now) {
    const auto found = old.find(path);
    if (found != old.end() && found->second != content)
      said.push_back(path + " has another content");
    if (found == old.end() && !contents.contains(content)) said.push_back(path + " is new");
    if (found != old.end()) old.erase(found);
  }
  for (const auto& [path, content] : old)
    if (!here.contains(content)) said.push_back(path + " is not there any more");
  return list_changes(std::move(said));
}

std::vector<SettingChange> all_changes(const RunOptions& options, const PlanSet& set,
                                       const Checkpoint& about, const BatchSource* data) {
  // An evaluation does not depend on the data and settings of the training before it.
  std::vector<SettingChange> changes;
  if (!options.evaluate_only)
    changes = changed_settings(about.strategy_text, set.manifest.strategy_text);
  const auto add = [&](std::string name, std::string before, std::string now) {
    if (before != now) changes.push_back({std::move(name), std::move(before), std::move(now)});
  };
  add("model", about.model_digest, set.manifest.model_digest);
  if (options.evaluate_only) return changes;
  const std::string now = data == nullptr ? "" : data->digest();
  add("data", about.data_digest, now);
  if (about.data_digest != now && data != nullptr)
    changes.back().now += changed_files(about.data_files, data->contents());
  add("seed", std::to_string(about.data_seed), std::to_string(options.data.seed));
  add("shuffle", about.shuffle ? "on" : "off", options.data.shuffle ? "on" : "off");
  return changes;
}

// Refuses names in --accept that are no settings: they would accept nothing.
Status check_accepted(const StartOptions& asked, const std::string& before,
                      const std::string& now) {
  std::vector<std::string> known{"model", "data", "seed", "shuffle"};
  for (const std::string* strategy : {&before, &now})
    for (std::string& name : setting_names(*strategy))
      if (std::find(known.begin(), known.end(), name) == known.end())
        known.push_back(std::move(name));
  for (const std::string& name : asked.accept) {
    const bool covers = std::any_of(known.begin(), known.end(), [&](const std::string& setting) {
      return covers_setting(name, setting);
    });
    if (!covers)
      return usage(fmt::format("--accept: '{}' is no setting{}", quote_control(name),
                               did_you_mean(name, known)))
          .with_note(fmt::format("there are {}", join(known, ", ")));
  }
  return ok_status();
}

// Warns that the formula of the learning rate counts all updates as if they had today's batch.
void tell_tokens(const PlanSet& set, const Start& start,
                 const std::vector<SettingChange>& changes) {
  const auto is_of_batch = [](const SettingChange& one) {
    return covers_setting("global_batch", one.setting) || covers_setting("rampup", one.setting);
  };
  const auto counts = [](const SettingChange& one) {
    const bool is_rate =
        covers_setting("schedule", one.setting) || covers_setting("lr", one.setting);
    return is_rate && one.now.find("tokens") != one.now.npos;
  };
  const std::vector<SettingChange> all = changed_settings("", set.manifest.strategy_text);
  if (!std::ranges::any_of(changes, is_of_batch) || !std::ranges::any_of(all, counts)) return;
  tell_user(fmt::format(
      "the learning rate counts 'tokens' as if each of the {} steps before had had today's {} "
      "samples; they had {} in all",
      start.step, batch_of(set), start.reader->about().samples));
}

Status check_settings(const RunOptions& options, const PlanSet& set, const Start& start,
                      const BatchSource* data, bool speaks) {
  const StartOptions& asked = options.start;
  const Checkpoint& about = start.reader->about();
  std::vector<SettingChange> changes = all_changes(options, set, about, data);
  PIPER_TRY(check_accepted(asked, about.strategy_text, set.manifest.strategy_text));
  std::vector<std::string> refused;
  for (const SettingChange& one : changes) {
    const bool accepted =
        asked.how == How::kBranch ||
        std::any_of(asked.accept.begin(), asked.accept.end(),
                    [&](const std::string& name) { return covers_setting(name, one.setting); });
    if (accepted && speaks) tell_user("other than before: " + print_change(one));
    if (!accepted) refused.push_back(print_change(one));
  }
  if (refused.empty() && speaks) tell_tokens(set, start, changes);
  if (refused.empty()) return ok_status();
  Error error = usage(fmt::format("{} was trained with other settings", start.reader->folder()));
  error.notes = refused;
  error.notes.push_back(start.is_running
                            ? "help: --accept NAME,… switches to the settings of the new plans"
                            : "help: --accept NAME,… goes on with the settings of now; --branch "
                              "accepts all of them");
  return error;
}

}  // namespace

Status check_start(const RunOptions& options, const PlanSet& set, Start& start,
                   const BatchSource* data, bool speaks) {
  const StartOptions& asked = options.start;
  const Loading loading = compare_states(set, *start.reader, asked.how == How::kInit);
  PIPER_TRY(check_states(asked, start, loading, set.directory));
  if (counts_afresh(asked, loading)) start.states->leave_out(loading.count);
  if (asked.how != How::kInit) PIPER_TRY(check_settings(options, set, start, data, speaks));
  if (speaks) tell_loading(start, options, loading);
  return ok_status();
}

namespace {

// Returns the number beside the name. Files on the command line are one source, whose name changes
// with them: it is the same one as long as it shares a file with what it was.
std::optional<int64_t> count_of(const std::vector<std::pair<std::string, int64_t>>& counts,
                                const std::string& name, bool is_same) {
  if (is_same && counts.size() == 1) return counts[0].second;
  for (const auto& [other, count] : counts)
    if (other == name) return count;
  return std::nullopt;
}

bool shares_a_file(const Checkpoint& about, const BatchSource& data) {
  std::set<std::string> before;
  for (const auto& [path, content] : about.data_files) before.insert(content);
  return std::ranges::any_of(data.contents(),
                             [&](const auto& file) { return before.contains(file.second); });
}

// Says what becomes of a source's order if its epochs have another number of samples than before:
// the order follows from that number. `given`: samples that the source has given.
void tell_epoch(const SourceEpoch& now, int64_t before, int64_t given) {
  if (now.samples == before || before <= 0 || now.samples <= 0 || given == 0) return;
  std::string text = fmt::format("source '{}' has {} samples instead of {}",
                                 quote_control(now.name), now.samples, before);
  const int64_t was_at = given % before, is_at = given % now.samples;
  if (now.shuffled) {
    const auto all = static_cast<double>(now.samples), at = static_cast<double>(is_at);
    const double known =
        static_cast<double>(was_at) * std::min(1.0, all / static_cast<double>(before));
    text += fmt::format(
        ": its order is another one from here on. Of the {} samples that its epoch has given, "
        "about {:.0f} come once more in it, and about {:.0f} others do not come in it",
        was_at, known * (all - at) / all, (all - known) * at / all);
  } else if (was_at != is_at) {
    text += fmt::format(": it goes on at sample {} of its epoch instead of {}", is_at, was_at);
  }
  tell_user(text);
}

void tell_moved(const std::string& name, int64_t before, int64_t count) {
  tell_user(
      count < before
          ? fmt::format("source '{}' goes back by {} samples, which come once more",
                        quote_control(name), before - count)
          : fmt::format("source '{}' leaves out {} samples", quote_control(name), count - before));
}

}  // namespace

void tell_moved_sources(const Checkpoint& about, const BatchSource& data) {
  const auto now = data.consumed(about.step);
  const std::vector<SourceEpoch> epochs = data.epochs();
  const bool is_same = now.size() == 1 && shares_a_file(about, data);
  bool moved = false;
  for (size_t s = 0; s < now.size(); ++s) {
    const auto& [name, count] = now[s];
    const int64_t before = count_of(about.sources, name, is_same).value_or(count);
    moved = moved || count != before;
    if (count != before) tell_moved(name, before, count);
    if (s < epochs.size())
      tell_epoch(epochs[s], count_of(about.epochs, name, is_same).value_or(0), count);
  }
  if (moved)
    tell_user(
        fmt::format("help: weights of a phase with 'from: {}' hold from here on, and each "
                    "source goes on where it was",
                    about.samples));
}

// ---- What the job's own checkpoints say ---------------------------------------------------------

namespace {

// New checkpoints are newer than all that the folder holds.
Status check_folder(const CheckpointOptions& options, int64_t first_step) {
  PIPER_ASSIGN(const std::vector<int64_t> steps,
               list_checkpoints(*options.storage, options.folder));
  if (steps.empty() || steps[0] <= first_step) return ok_status();
  return usage(fmt::format("'{}' has {}, and this job begins at step {}: its checkpoints would be "
                           "mixed with those of another run",
                           options.folder, checkpoint_name(steps[0]), first_step))
      .with_note(fmt::format("help: go on from it with --resume {}, or write to another folder",
                             options.folder));
}

constexpr const char* kStarts = "/.starts";

Error too_many_starts(const CheckpointOptions& options, int64_t starts, int64_t first_step,
                      const std::string& file) {
  return fail(
             "this job was started {} times after step {} without a new checkpoint in '{}', "
             "and '--max-restarts-without-step {}' allows no more",
             starts - 1, first_step, options.folder, options.most_restarts)
      .with_code(ExitCode::kNumeric)
      .with_note(fmt::format("help: look for what ended it each time; then remove {}", file));
}

// Counts the starts since the newest checkpoint: a job that fails always in the same way would be
// started again for ever.
Status count_start(const JobOptions& job) {
  const CheckpointOptions& options = *job.checkpoint;
  const int64_t first_step = job.first_step;
  if (options.most_restarts == 0) return ok_status();
  const std::string file = options.folder + kStarts;
  int64_t step = -1, starts = 0;
  if (const auto text = options.storage->read(file))
    std::sscanf(std::string(as_text(text->span())).c_str(), "%" SCNd64 " %" SCNd64, &step, &starts);
  starts = step == first_step ? starts + 1 : 1;
  if (starts > options.most_restarts + 1) return too_many_starts(options, starts, first_step, file);
  const std::string line = fmt::format("{} {}\n", first_step, starts);
  const std::string_view parts[] = {line};
  Status written = options.storage->write(file, parts);
  if (written || !options.goes_on || !job.on_loss) return written;
  job.on_loss(written.error());
  return ok_status();
}

}  // namespace

void forget_starts(const CheckpointOptions& options) {
  if (options.most_restarts == 0) return;
  static_cast<void>(options.storage->remove(options.folder + kStarts));
}

int64_t batch_of(const PlanSet& set) {
  int64_t batch = 0;
  for (const RoleProgram& role : set.roles) batch = std::max(batch, role.samples());
  return batch;
}

Status prepare_checkpoints(RunOptions& options, const PlanSet& set, const BatchSource* data,
                           const std::optional<Start>& start, bool speaks) {
  if (!options.job.checkpoint) return ok_status();
  if (speaks) PIPER_TRY(check_folder(*options.job.checkpoint, options.job.first_step));
  if (speaks) PIPER_TRY(count_start(options.job));
  describe_job(options, set, data, options.job.checkpoint->about);
  const int64_t batch = batch_of(set);
  const int64_t first = start ? start->step : 0, samples = start ? start->samples : 0;
  options.job.checkpoint->count_samples = [=](int64_t step, Checkpoint& one) {
    one.samples = samples + (step - first) * batch;
    if (data != nullptr) one.sources = data->consumed(step);
  };
  return ok_status();
}

void describe_job(const RunOptions& options, const PlanSet& set, const BatchSource* data,
                  Checkpoint& about) {
  about.data_seed = options.data.seed;
  about.shuffle = options.data.shuffle;
  about.data_digest = data == nullptr ? "" : data->digest();
  if (data != nullptr) about.data_files = data->contents();
  if (data != nullptr)
    for (const SourceEpoch& epoch : data->epochs())
      about.epochs.emplace_back(epoch.name, epoch.samples);
  about.compiler = set.manifest.compiler;
  about.set_id = set.manifest.set_id;
  about.model_digest = set.manifest.model_digest;
  about.strategy_text = set.manifest.strategy_text;
  about.states = states_of(set);
}

}  // namespace piper
