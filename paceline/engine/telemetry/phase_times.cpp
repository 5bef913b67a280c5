#include "paceline/engine/telemetry/phase_times.h"

#include "paceline/engine/telemetry/timeline.h"

namespace paceline {

void PhaseTimes::record(Phase phase, Clock::time_point begin, Clock::time_point end) {
  if (!timeline_) return;
  timeline_->add(SpanKind::kPhase, static_cast<std::uint8_t>(phase), 0, begin, end);
}

void PhaseTimes::record_step(std::int64_t step, Clock::time_point begin) {
  if (timeline_) timeline_->add(SpanKind::kStep, 0, step, begin, Clock::now());
}

}  // namespace paceline
