// The digest (base.h) of bytes that come in parts.
#pragma once

#include "piper/base/base.h"

namespace piper {

class Digester {
 public:
  Digester();
  ~Digester();
  Digester(const Digester&) = delete;
  Digester& operator=(const Digester&) = delete;
  void add(std::string_view bytes);
  std::string digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace piper
