// Several errors of one file at once.
#pragma once

#include "piper/base.h"

namespace piper {

class ErrorList {
 public:
  void add(Error error);
  void add(Status status) {
    if (!status) add(std::move(status).error());
  }
  bool empty() const { return errors_.empty(); }
  // The first of them by place; notes "also: …" are the others as they are printed, and print_error
  // shows them so. At most ten; further
  // ones are counted. Without errors: ok.
  Status status() const;

 private:
  std::vector<Error> errors_;
};

}  // namespace piper
