// The flags of piper-run that say when checkpoints are written and with which one a run begins.
#include "checkpoint_flags.h"

#include <cstdlib>

#include "flag_checks.h"

namespace piper {

void CheckpointFlags::add(CLI::App& app, RunOptions& run) {
  app.add_option("--checkpoint", options.folder,
                 "write checkpoints into this folder: at the job's end, when it is interrupted, "
                 "at SIGUSR1, and as --every and --minutes say")
      ->type_name("DIR");
  app.add_option("--every", options.every, "a checkpoint each N steps")
      ->type_name("N")
      ->check(a_count(1));
  app.add_option("--minutes", options.minutes,
                 "a checkpoint when so many minutes have passed since the one before")
      ->type_name("M")
      ->check(between(1e-3, 1e6, "a number of minutes from 0.001 to 1e6"));
  app.add_option("--keep", keep,
                 "which checkpoints stay, as last=3,every=5000,best=2: the newest, those of so "
                 "many steps, those of lowest loss (default: all)")
      ->type_name("RULES");
  app.add_option("--checkpoint-errors", checkpoint_errors,
                 "stop: a checkpoint that cannot be written ends the job, with exit 12; ignore: it "
                 "is named, and training goes on")
      ->check(CLI::IsMember({"stop", "ignore"}))
      ->capture_default_str();
  app.add_option("--max-restarts-without-step", options.most_restarts,
                 "refuse a job that was restarted N times without a new checkpoint, with exit 11 "
                 "(default: no limit)")
      ->type_name("N")
      ->check(a_count(1));
  app.add_option(
         "--time-limit", time_limit,
         "end early enough that the last step and its checkpoint are done within this time: 90m, "
         "11h30m or seconds; exit 130")
      ->type_name("TIME");
  const std::pair<const char*, std::string*> verbs[] = {{"--resume", &resume},
                                                        {"--resume-or-start", &resume_or_start},
                                                        {"--branch", &branch},
                                                        {"--init", &init}};
  const char* const texts[] = {
      "resume from the newest undamaged checkpoint in DIR, or from DIR if it is one, on any number "
      "of ranks; --steps counts from the beginning",
      "the same, but start at step 0 if DIR has no checkpoint",
      "load parameters and states of a checkpoint, with other data or settings; states that it "
      "lacks get their initial values, and are listed",
      "load only parameters and buffers, of a checkpoint or a safetensors file, and begin at step "
      "0"};
  std::vector<CLI::Option*> added;
  for (size_t v = 0; v < std::size(verbs); ++v) {
    added.push_back(app.add_option(verbs[v].first, *verbs[v].second, texts[v])
                        ->type_name(v == 3 ? "DIR|FILE.safetensors" : "DIR"));
    for (size_t other = 0; other < v; ++other) added[v]->excludes(added[other]);
  }
  app.add_option("--accept", run.start.accept,
                 "settings that may differ from those of the checkpoint: lr, global_batch, data, "
                 "model, seed, or others that an error names")
      ->type_name("NAME,…")
      ->delimiter(',')
      ->expected(1)
      ->take_all();
}

namespace {

// Returns the seconds of "90m", "11h30m", "3600" or "45s": only the first number may have no unit.
Result<double> parse_duration(const std::string& text) {
  double total = 0;
  const char* at = text.c_str();
  do {
    char* end = nullptr;
    const double number = std::strtod(at, &end);
    const bool is_bare = *end == '\0' && at == text.c_str();
    const double unit = *end == 'h' ? 3600 : *end == 'm' ? 60 : *end == 's' || is_bare ? 1 : 0;
    if (end == at || unit == 0 || !(number >= 0) || number > 1e9)
      return fail("--time-limit: '{}' is no time such as 90m, 11h30m or 3600", text)
          .with_code(ExitCode::kUsage);
    total += number * unit;
    at = *end == '\0' ? end : end + 1;
  } while (*at != '\0');
  if (total > 0) return total;
  return fail("--time-limit: {} is too short for any step", text).with_code(ExitCode::kUsage);
}

}  // namespace

Status CheckpointFlags::take(RunOptions& run) {
  using How = StartOptions::How;
  const std::pair<const std::string*, How> verbs[] = {{&resume, How::kResume},
                                                      {&resume_or_start, How::kResumeOrStart},
                                                      {&branch, How::kBranch},
                                                      {&init, How::kInit}};
  for (const auto& [from, how] : verbs)
    if (!from->empty()) run.start.how = how, run.start.from = *from;
  if (!run.start.accept.empty() && (resume + resume_or_start).empty() && run.switches.empty())
    return fail(
               "--accept names what may differ from a checkpoint that a job resumes, or between "
               "plans that it switches to")
        .with_code(ExitCode::kUsage)
        .with_note("help: --resume DIR, or --resume-or-start DIR");
  if (!time_limit.empty()) {
    PIPER_ASSIGN(run.job.time_limit_s, parse_duration(time_limit));
  }
  if (!keep.empty()) {
    PIPER_ASSIGN(options.keep, parse_keep(keep));
  }
  options.goes_on = checkpoint_errors == "ignore";
  const CheckpointOptions& given = options;
  if (!given.folder.empty() || !run.out.empty()) {
    run.job.checkpoint = given;
  } else if (given.every > 0 || given.minutes > 0 || !keep.empty() || given.most_restarts > 0) {
    return fail(
               "--every, --minutes, --keep and --max-restarts-without-step need a folder for "
               "checkpoints")
        .with_code(ExitCode::kUsage)
        .with_note("help: --checkpoint DIR, or --out DIR");
  }
  return ok_status();
}

}  // namespace piper
