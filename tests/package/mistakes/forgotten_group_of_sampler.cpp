// wanted: the group is missing: write DistributedSampler sampler(dataset->size(), group)
#include <paceline/paceline.h>

#include <torch/torch.h>

int main() { paceline::data::DistributedSampler sampler(100); }
