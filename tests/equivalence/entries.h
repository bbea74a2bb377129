// Entries of `replicate` on a model of one or more stages: the strategy around them, and their
// training beside the plan for one device.
#pragma once

#include "equivalence/jobs.h"

namespace piper::jobs {

struct Entries {
  const char* name;
  std::string mesh, text;  // further axes, and directives
  int64_t microbatches = 2;
};

inline std::string text_of(const Entries& of, int64_t pp) {
  return fmt::format(
      "piper: 1\nmesh: {{pp: {0}, {1}}}\nannotate: [{{balance: {{tag: stage, into: {0}}}}}]\n"
      "directives:\n  - split: {{dim: batch, into: {3}}}\n"
      "  - place: {{where: {{stage: s}}, on: {{pp: s}}}}\n{2}",
      pp, of.mesh, of.text, of.microbatches);
}

// Trains the plans and compares each step with the plan for one device.
inline Result<JobResult> train_beside_single(const Compiled& compiled, const char* model,
                                             int64_t steps) {
  PIPER_ASSIGN(const auto data, open_batches(compiled.set, model));
  PIPER_ASSIGN(const auto reference_data, open_batches(*compiled.single, model));
  JobOptions job;
  job.steps = steps;
  job.threads = 1;
  job.verify.against = VerifyAgainst::kSingle;
  return run_job(compiled.set, data.get(), &*compiled.single, reference_data.get(), job);
}

}  // namespace piper::jobs
