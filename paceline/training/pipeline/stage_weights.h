#pragma once

// The weights of a whole model, of which each rank of a pipeline has those of its stages.

#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"

namespace paceline {

// Collective over the pipeline's ranks: all their weights, on every rank; a name that several have
// (a tied weight) comes from the first. Memory for the whole model on every rank.
std::map<std::string, at::Tensor> gather_stages(ProcessGroup& group,
                                                const std::map<std::string, at::Tensor>& own);

}  // namespace paceline
