#pragma once

// The launcher needs a few descriptors per rank. The soft limit is raised for it as far as the hard
// limit allows; ranks get back the limit that the user set.

namespace paceline::launcher {

// Error(kSystem) names the number needed when the hard limit is too low.
void require_descriptors(int num_local_ranks);

// In a rank, before exec.
void restore_descriptor_limit();

}  // namespace paceline::launcher
