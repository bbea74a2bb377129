#include "sum.h"

namespace piper {

void check_sums(const Model& model, const Section& section, Findings& findings,
                VerifyReport& report) {
  SumCheck(model, section, findings, report).run();
}

}  // namespace piper
