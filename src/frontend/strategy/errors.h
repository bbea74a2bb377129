// Several errors of one file at once.
#pragma once

#include "piper/base/base.h"

namespace piper {

// Returns what fails because of an error that is reported already.
Error consequence();
// Such a value is replaced, so that what is read with it is checked all the same.
template <class T>
Result<T> or_else(Result<T> made, T otherwise) {
  return !made && made.error().message.empty() ? Result<T>(std::move(otherwise)) : std::move(made);
}

class ErrorList {
 public:
  void add(Error error);  // but for consequences, and what is there already
  void add(Status status) {
    if (!status) add(std::move(status).error());
  }
  bool empty() const { return errors_.empty(); }
  // Returns the first error by place; notes "also: …" are the others as they are printed, and
  // print_error shows them so. At most ten; further
  // ones are counted. Without errors: ok.
  Status status() const;

 private:
  std::vector<Error> errors_;
};

}  // namespace piper
