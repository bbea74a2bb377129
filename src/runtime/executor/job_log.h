// What a job says: on stderr and, with --out, in a log. Private to the executor room.
#pragma once

#include <string>
#include <string_view>

#include "piper/base/base.h"

namespace piper {

// Adds what the processes of a job say to one file, with the time. A file that cannot be written to
// costs its lines, not the run.
class JobLog {
 public:
  JobLog() = default;
  JobLog(const JobLog&) = delete;
  JobLog& operator=(const JobLog&) = delete;
  ~JobLog();  // what is said from then on is in no log
  // Begins with what this process says next. One log at a time.
  static void open(const std::string& path);
  // Adds whole lines here alone.
  static void add(std::string_view lines);
};

// Says whole lines on stderr, where they take the place of a line of progress, and in the log.
void say(const std::string& lines);

}  // namespace piper
