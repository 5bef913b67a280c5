#include "paceline/planning/forecast/gradient_overlap.h"

#include <algorithm>

namespace paceline::planning {

ExposedExchange exposed_exchange(const std::vector<GradientsOfLayer>& layers, double bucket_bytes,
                                 const std::function<double(double bytes)>& seconds_of) {
  ExposedExchange result;
  double now = 0, link_free = 0, collected = 0;
  const auto send = [&] {
    const double seconds = seconds_of(collected);
    link_free = std::max(link_free, now) + seconds;
    result.whole_s += seconds;
    ++result.num_buckets;
    collected = 0;
  };
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
    now += layer->backward_s;
    collected += layer->bytes;
    if (collected >= bucket_bytes) send();
  }
  if (collected > 0) send();
  result.seconds = std::max(0.0, link_free - now);
  return result;
}

}  // namespace paceline::planning
