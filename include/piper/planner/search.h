// The search for a strategy: of meshes, schedules and ways to save memory, which the library has,
// those that take the least time on a cluster.
//
// A candidate is an ordinary strategy file: includes of the library over the user's own file.
// It is compiled, proven and simulated, so what is said of it is what piper-sim says. The search
// goes from the best of some usual strategies to the best of its neighbours, which differ from it
// in one choice, until none is better: all choices are tried together, as none is good alone.
#pragma once

#include <set>

#include "piper/inspect/cluster.h"
#include "piper/planner/compile.h"

namespace piper {

// Holds what a candidate chooses.
struct SearchChoice {
  int64_t pipeline = 1, tensor = 1, replicas = 1;  // ranks along each axis
  std::string schedule, memory;                    // names of the library
  int64_t microbatches = 1;
  bool sequence = false, vocabulary = false;
  std::string recompute;  // a name of the library, "": nothing runs again
  int64_t keep = 0;       // MiB that a stage keeps of a microbatch, of a way that has a budget
  int64_t context = 1, experts = 1;  // ranks along each axis
  std::string attention;             // how contexts in parts attend: a name of the library
  std::set<std::string> beside;      // names of the library that are included, too
  int64_t ranks() const { return pipeline * tensor * replicas * context * experts; }
  auto operator<=>(const SearchChoice&) const = default;
};
// "pipeline 4 (NAME), tensor 2, replicas 8 (NAME), 16 microbatches, recompute".
std::string describe(const SearchChoice& choice);

// Says what is tried, as a file has it (strategies/spaces).
struct SearchSpace {
  std::string path;
  std::vector<std::string> schedules, memory;  // the first: of one stage, of one replica
  std::vector<std::string> context;            // ways to cut contexts; empty: none is tried
  std::vector<std::string> recompute;          // of one stage, of several; the others for any
  std::string budget;                          // one with a budget; "": none
  std::string experts;                         // likewise
  struct Beside {                              // is included or not
    std::string name;
    std::string needs;  // the axis or choice without which it is not, as "pipeline"; "": none
  };
  std::vector<Beside> beside;
  struct Begin {
    int64_t pipeline = 1, tensor = 1;  // tensor 0: the devices of a node
    std::string schedule, memory;
  };
  std::vector<Begin> begin;
};
// Reads a file, or one of the library: "<usual>". Errors are located.
Result<SearchSpace> read_space(const std::string& name,
                               const std::vector<std::string>& folders = {});

struct SearchOptions {
  CompileOptions compile;  // `strategy`: the user's file, which every candidate includes
  Cluster cluster;
  SearchSpace space;
  std::optional<MeasuredTimes> profile;
  int64_t ranks = 0;   // 0: all devices of the cluster
  double memory = 0;   // bytes of a device that plans may take; 0: as the cluster says
  int64_t most = 160;  // candidates that are tried
  // How many are tried at once; 0: as many as there are cores. It changes no result.
  int64_t threads = 0;
  // Values that stay, as piper-search --help lists them.
  std::vector<std::pair<std::string, std::string>> fixed;
  std::string folder;  // where candidates are written while they are tried
  // A folder in which it is kept what candidates came to, by digests of all that it depends on, so
  // that a later search need not compile them again; "": none.
  std::string kept;
  // Called with each candidate that was tried, in their order, by one thread at a time; may be
  // empty.
  std::function<void(const struct Tried&, int64_t number)> progress;
  // Called once, by any thread, if nothing can be kept; may be empty.
  std::function<void(const Error&)> warn;
};

struct Tried {
  SearchChoice choice;
  std::string params;            // of a sweep, in place of a choice: "stages = 2, dp = 4"
  std::string text;              // the strategy
  double step = 0;               // seconds; 0: it was refused
  double idle = 0, exposed = 0;  // shares of all devices' time, and of a step on the rank with most
  double peak_bytes = 0, memory = 0;  // the most of a rank, and what a device has
  std::string refused;                // why
  bool fits() const { return refused.empty() && (memory <= 0 || peak_bytes <= memory); }
};
std::string describe(const Tried& tried);
struct Found {
  std::vector<Tried>
      tried;          // best first: those that fit, then those that do not, then refused ones
  double bound = 0;   // seconds: the model's products at the peak of all devices
  bool ended = true;  // no neighbour of the best is better; else `most` was reached
};
// Errors: nothing can be tried (the model or the user's file is wrong; ranks that the cluster
// lacks; an unknown fixed name or value); kStorage: the system refused what a candidate needs.
Result<Found> search(const SearchOptions& options);
// Returns the first strategy that fits on more devices like these, for where nothing fits: 2, 4,
// 8 … times as many as `least`, what needs least, has; of each number a few are tried. Nothing:
// none of three such numbers is enough. The file of the cluster need not have so many.
Result<std::optional<Tried>> fit_on_more(const SearchOptions& options, const Tried& least);

// Lists params of the user's file, and the values of each, as a file has them:
//   piper_sweep: 1
//   params: {stages: [1, 2, 4], microbatches: [8, 16]}
struct SweptParam {
  std::string name;
  std::vector<std::string> values;
  SourceSpan at;
};
Result<std::vector<SweptParam>> read_sweep(const std::string& path);
struct Swept {
  std::vector<Definition> values;
  Tried tried;  // without a choice
};
// Tries the user's file as it is, for each combination of values, the last param's changing first.
// Error: a param that it does not have.
Result<std::vector<Swept>> sweep(const SearchOptions& options,
                                 const std::vector<SweptParam>& params);
// Prints a table of them.
std::string print_sweep(const std::vector<Swept>& rows);

// With what a result begins.
inline constexpr std::string_view kFoundLine = "# Found by piper-search ";
// Returns the strategy file of the best, with what is predicted of it and of the next ones as
// comments. Requires that one fits.
std::string print_found(const Found& found, const SearchOptions& options);

}  // namespace piper
