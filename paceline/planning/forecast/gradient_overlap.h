#pragma once

// How much of the exchange of gradients the backward pass hides. Gradients come from the last layer
// to the first; a bucket leaves when it is full and the one before it has gone.
//
// Thread safety: pure functions.

#include <functional>
#include <vector>

namespace paceline::planning {

struct GradientsOfLayer {
  double backward_s = 0;
  double bytes = 0;
};

struct ExposedExchange {
  double seconds = 0;  // from the end of the backward pass to that of the exchange
  double whole_s = 0;  // of all buckets, hidden or not
  int num_buckets = 0;
};

// `layers` in the order of the forward pass; `seconds_of`: what a bucket of so many bytes takes.
// Requires: bucket_bytes > 0.
ExposedExchange exposed_exchange(const std::vector<GradientsOfLayer>& layers, double bucket_bytes,
                                 const std::function<double(double bytes)>& seconds_of);

}  // namespace paceline::planning
