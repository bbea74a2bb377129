// Reports of a model for people.
#pragma once

#include "piper/frontend/import.h"
#include "piper/frontend/params.h"

namespace piper::onnx_import {

// Fills parameters, constants and notes of an Imported or a Survey.
template <class Report>
void fill_reports(const OnnxModel& model, const Recovery& recovery, Report& out);
// Describes all that is known, also of a model that is refused.
Survey survey_model(OnnxModel model);

}  // namespace piper::onnx_import
