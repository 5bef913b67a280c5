"""Carries out every operation of c10d on CPU tensors by calls of the engine. backend.py and process_group.py build torch's classes from
the class Operations.

If a program waits for an operation at once (`asyncOp` is false in its options, torch 2.8 and later), the operation runs in the calling
thread. Every other operation is only started, and returns a Work. Tensors that are not contiguous are copied.

Thread safety: every method may be called from any thread. As everywhere in torch.distributed, all ranks must call the same collectives in
the same order.
"""

from datetime import timedelta
import os

import torch
from torch._C._distributed_c10d import Backend
from torch.distributed import ReduceOp

from paceline import _core
from paceline.torch import detail, futures, profiling
from paceline.torch.errors import DistBackendValueError, Error, as_dist_error, refuse
from paceline.torch.monitored_barrier import monitored_barrier
from paceline.torch.sparse import all_reduce_sparse
from paceline.torch.tensors import (
    MEAN,
    SUM,
    WHOLE_NUMBERS,
    adjoining,
    combine,
    divide_whole_numbers,
    elements,
    flat,
    prescale,
    reduced_type,
    reduction,
    require_alike,
    require_dense,
    spread,
)
from paceline.torch.work import PacelineWork, ended, milliseconds

_OPS = _core.OPS
_TAGS = 1 << 32  # the number of tags that the engine has


def _list(tensors):
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _option(options, name, default):
    return getattr(options, name, default)


class Operations:
    """The operations of one group. A subclass calls _start() first."""

    backend_name = "paceline"  # "gloo" if Paceline replaces Gloo, because programs look for that name

    def _start(self, group, store, timeout, options=None):
        """`group`: the engine's group. `store`: the group's store, for monitored_barrier()."""
        self._group = group
        self._options = options or Backend.Options("paceline", timeout=timeout)
        self._store = store
        self._timeout_ms = milliseconds(timeout)
        self._sequence = 0
        self._coalesced = None  # the Works of the open coalesced block; None outside of a block
        self._process = os.getpid()
        self._checks_calls = False  # see check_every_call()
        self._world = group.size
        self._number = group.rank
        futures.leave_at_exit(self)

    # ---- calls of the engine

    def _call(self, op, dtype, source, target, options, keep, result, after=None, reduce_op=0, root=0, shown=None, **lists):
        """Carries out or starts a call, and returns its Work. `source` and `target`: address and number of elements. `keep`: what must
        exist until the call ends. `result`: the result of the Work. `after`: runs when the call has ended. `shown`: the tensors whose
        shapes a profiler records; without it, those of the result. `lists`: lists of counts or of buffers for the engine."""
        timeout = milliseconds(_option(options, "timeout", None)) or self._timeout_ms
        self._sequence += 1
        if self._checks_calls:
            detail.require_alike_calls(self, op, result, timeout)
        if reduce_op == MEAN and dtype in WHOLE_NUMBERS:  # the engine divides only floating-point numbers
            reduce_op = SUM
            after = self._dividing(result if op != "reduce" or root == self._number else (), after)
        arguments = (_OPS[op], dtype, *source, *target, reduce_op, root, timeout)
        event = profiling.event(self.backend_name, op, shown if shown is not None else result)
        try:
            if profiling.is_on() or _option(options, "asyncOp", True):
                operation = self._group.start(keep, *arguments, **lists)
                return self._made(PacelineWork((operation,), result, after, event))
            self._group.run(*arguments, **lists)
        except Error as error:
            raise as_dist_error(error) from None
        return self._made(ended(result, after))

    def _dividing(self, tensors, after):
        """Returns a function that runs `after` and then divides sums of whole numbers by the number of ranks."""

        def divide():
            if after is not None:
                after()
            divide_whole_numbers(tensors, self._world)

        return divide

    def _made(self, work):
        """Returns the Work, and adds it to the coalesced block if one is open."""
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _root(self, operation, options, root=None):
        """Returns the root rank: `root`, or the one in the options."""
        number = _option(options, "rootRank", 0) if root is None else root
        if not 0 <= number < self._world:
            refuse(operation, f"invalid root rank {number}: the ranks of the group are 0 to {self._world - 1}")
        return number

    @staticmethod
    def _written(tensor):
        """Returns the tensor that the engine fills, and a function that then copies it into `tensor`. If `tensor` is contiguous, the
        engine fills `tensor` itself, and the function is None."""
        return (tensor, None) if tensor.is_contiguous() else Operations._copied(tensor)

    @staticmethod
    def _copied(tensor):
        copy = tensor.clone(memory_format=torch.contiguous_format)
        return copy, lambda: tensor.copy_(copy)

    # ---- collectives on whole tensors

    def broadcast(self, tensors, opts=None, root=None, timeout=None):
        tensors = _list(tensors)
        root = self._root("broadcast", opts, root)
        index = _option(opts, "rootTensor", 0)
        if not 0 <= index < len(tensors):
            refuse("broadcast", f"invalid root tensor {index} of {len(tensors)}")
        require_dense("broadcast", tensors)
        require_alike("broadcast", tensors, tensors[0].dtype, tensors[0].shape)
        memory, copy = self._written(tensors[index])
        others = [tensor for tensor in tensors if tensor is not tensors[index]]

        def after():
            if copy:
                copy()
            for tensor in others:
                tensor.copy_(memory)

        dtype, count = elements(memory)
        place = (memory.data_ptr(), count)
        return self._call("broadcast", dtype, place, place, opts, memory, tensors, after if copy or others else None, root=root)

    def allreduce(self, tensors, opts=None, op=None, timeout=None):
        tensors = _list(tensors)
        if not tensors:
            refuse("all_reduce", "requires non-empty tensor list")
        reduce_op = opts if isinstance(opts, (ReduceOp, ReduceOp.RedOpType)) else _option(opts, "reduceOp", ReduceOp.SUM)
        reduce_op = reduce_op if op is None else op
        if tensors[0].layout == torch.sparse_coo:
            return self._made(all_reduce_sparse(self, tensors, reduce_op))
        for index, tensor in enumerate(tensors):
            if tensor.layout != torch.strided:
                refuse("all_reduce", f"invalid tensor layout at index {index}: {tensor.layout}")
        require_dense("all_reduce", tensors)
        require_alike("all_reduce", tensors, tensors[0].dtype, tensors[0].shape)
        dtype = reduced_type("all_reduce", tensors[0])
        number = reduction("all_reduce", reduce_op)
        for tensor in tensors:
            prescale(tensor, reduce_op)
        combine(tensors, reduce_op)
        memory, copy = self._written(tensors[0])

        def after():
            if copy:
                copy()
            for tensor in tensors[1:]:
                tensor.copy_(tensors[0])

        place = (memory.data_ptr(), memory.numel())
        after = after if copy or len(tensors) > 1 else None
        return self._call("all_reduce", dtype, place, place, opts, memory, tensors, after, reduce_op=number)

    def allreduce_coalesced(self, tensors, opts=None):
        tensors = _list(tensors)
        if not tensors:
            refuse("all_reduce_coalesced", "requires non-empty tensor list")
        for index, tensor in enumerate(tensors):
            if tensor.layout != tensors[0].layout:
                refuse("all_reduce_coalesced", f"invalid tensor layout at index {index}: {tensor.layout}")
            if tensor.dtype != tensors[0].dtype:
                refuse("all_reduce_coalesced", "tensors must all have the same type")
        require_dense("all_reduce_coalesced", tensors)
        reduce_op = _option(opts, "reduceOp", ReduceOp.SUM)
        dtype = reduced_type("all_reduce_coalesced", tensors[0])
        number = reduction("all_reduce_coalesced", reduce_op)
        for tensor in tensors:
            prescale(tensor, reduce_op)
        written = []
        for tensor in tensors:
            # The engine's buffers must not overlap, so a tensor that is in the list twice is copied.
            is_twice = any(tensor.data_ptr() == memory.data_ptr() for memory, _ in written)
            written.append(self._copied(tensor) if is_twice else self._written(tensor))
        copies = [copy for _, copy in written if copy]
        keep = [memory for memory, _ in written]
        outputs = [(memory.data_ptr(), memory.numel()) for memory in keep]

        def after():
            for copy in copies:
                copy()

        return self._call(
            "all_reduce", dtype, (0, 0), (0, 0), opts, keep, tensors, after if copies else None, reduce_op=number, outputs=outputs
        )

    def reduce(self, tensors, opts=None, root=None, op=None, timeout=None):
        tensors = _list(tensors)
        root = self._root("reduce", opts, root)
        if _option(opts, "rootTensor", 0) != 0:
            refuse("reduce", f"invalid root tensor {opts.rootTensor} of {len(tensors)}")
        if len(tensors) != 1:
            refuse("reduce", f"requires a single-element tensor list, not one of {len(tensors)}")
        require_dense("reduce", tensors)
        reduce_op = _option(opts, "reduceOp", ReduceOp.SUM) if op is None else op
        dtype = reduced_type("reduce", tensors[0])
        number = reduction("reduce", reduce_op)
        prescale(tensors[0], reduce_op)
        memory, copy = self._written(tensors[0])
        place = (memory.data_ptr(), memory.numel())
        return self._call("reduce", dtype, place, place, opts, memory, tensors, copy, reduce_op=number, root=root)

    # ---- gathering

    def allgather(self, output_tensors, input_tensors, opts=None, timeout=None):
        inputs = _list(input_tensors)
        if output_tensors and isinstance(output_tensors[0], torch.Tensor):
            output_tensors = [output_tensors]
        if not inputs:
            refuse("all_gather", "requires non-empty input tensor list")
        if len(output_tensors) != len(inputs):
            refuse("all_gather", "requires input/output tensor lists to have the same length")
        for index, outputs in enumerate(output_tensors):
            if len(outputs) != len(inputs) * self._world:
                refuse(
                    "all_gather",
                    f"invalid output tensor list at index {index}: expected length {len(inputs) * self._world}, got {len(outputs)}",
                )
        require_dense("all_gather", inputs)
        require_alike("all_gather", inputs, inputs[0].dtype, inputs[0].shape)
        for outputs in output_tensors:
            require_dense("all_gather", outputs)
            require_alike("all_gather", outputs, inputs[0].dtype, inputs[0].shape)
        source = flat(inputs)
        first = output_tensors[0]
        result = first if len(output_tensors) == 1 else [list(outputs) for outputs in output_tensors]
        dtype, count = elements(source)
        if len(output_tensors) == 1 and adjoining(first):
            return self._call("all_gather", dtype, (source.data_ptr(), count), (first[0].data_ptr(), count * self._world), opts,
                              (source, first), result, shown=inputs)
        whole = torch.empty(source.numel() * self._world, dtype=source.dtype)

        def after():
            for outputs in output_tensors:
                spread(whole, outputs)

        return self._call("all_gather", dtype, (source.data_ptr(), count), (whole.data_ptr(), count * self._world), opts,
                          (source, whole), result, after, shown=inputs)

    def all_gather_single(self, output, input, opts=None):  # noqa: A002: torch's name
        require_dense("all_gather_into_tensor", (output, input))
        if output.dtype != input.dtype:
            refuse("all_gather_into_tensor", f"the output is {output.dtype}, the input {input.dtype}")
        if output.numel() != input.numel() * self._world:
            refuse(
                "all_gather_into_tensor",
                f"the output has {output.numel()} elements, not {self._world} times the {input.numel()} of the input",
            )
        source = input.contiguous()
        memory, copy = self._written(output)
        dtype, count = elements(source)
        return self._call("all_gather", dtype, (source.data_ptr(), count), (memory.data_ptr(), count * self._world), opts,
                          (source, memory), [output], copy)

    _allgather_base = all_gather_single

    def allgather_coalesced(self, output_lists, input_list, opts=None):
        inputs = _list(input_list)
        if len(output_lists) != self._world:
            refuse("all_gather_coalesced", f"output lists should be equal to world size {self._world}, not {len(output_lists)}")
        for outputs in output_lists:
            if len(outputs) != len(inputs):
                refuse("all_gather_coalesced", f"invalid output list of {len(outputs)} tensors for {len(inputs)} inputs")
            for index, (given, output) in enumerate(zip(inputs, outputs)):
                if given.shape != output.shape:
                    refuse("all_gather_coalesced", f"invalid size of output tensor at index {index}: {list(output.shape)}")
                if given.dtype != output.dtype:
                    refuse("all_gather_coalesced", f"invalid tensor type at index {index}: {output.dtype}, not {given.dtype}")
        with profiling.one_event(self.backend_name, "all_gather", inputs) as event:
            works = [self.allgather([[outputs[i] for outputs in output_lists]], [given], opts) for i, given in enumerate(inputs)]
        return self._together(works, [list(outputs) for outputs in output_lists], event)

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        return self._together([self.all_gather_single(output, given, opts) for output, given in zip(outputs, inputs)], list(outputs))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, output_tensors, input_tensors, opts=None, root=None, timeout=None):
        inputs = _list(input_tensors)
        root = self._root("gather", opts, root)
        if len(inputs) != 1:
            refuse("gather", f"requires a single-element input tensor list, not one of {len(inputs)}")
        require_dense("gather", inputs)
        source = inputs[0].contiguous()
        dtype, count = elements(source)
        if self._number != root:
            if output_tensors:
                refuse("gather", "requires empty output on non-root")
            return self._call("gather", dtype, (source.data_ptr(), count), (0, 0), opts, source, [], root=root)
        if len(output_tensors) != 1:
            refuse("gather", f"requires a single-element output list containing a list with {self._world} tensors")
        outputs = list(output_tensors[0])
        if len(outputs) != self._world:
            refuse("gather", f"Incorrect output list size {len(outputs)}. Output list size should be {self._world}, same as size of the "
                             "process group.")
        require_dense("gather", outputs)
        require_alike("gather", outputs, source.dtype, source.shape)
        whole = torch.empty(source.numel() * self._world, dtype=source.dtype)
        return self._call("gather", dtype, (source.data_ptr(), count), (whole.data_ptr(), count * self._world), opts,
                          (source, whole), outputs, lambda: spread(whole, outputs), root=root)

    # ---- scattering

    def scatter(self, output_tensors, input_tensors, opts=None, root=None, timeout=None):
        outputs = _list(output_tensors)
        root = self._root("scatter", opts, root)
        if len(outputs) != 1:
            refuse("scatter", f"requires a single-element output tensor list, not one of {len(outputs)}")
        require_dense("scatter", outputs)
        memory, copy = self._written(outputs[0])
        dtype, count = elements(memory)
        target = (memory.data_ptr(), count)
        if self._number != root:
            if input_tensors:
                refuse("scatter", "requires empty input on non-root")
            return self._call("scatter", dtype, (0, 0), target, opts, memory, outputs, copy, root=root)
        if len(input_tensors) != 1:
            refuse("scatter", f"requires a single-element input list containing a list with {self._world} tensors")
        inputs = list(input_tensors[0])
        if len(inputs) != self._world:
            refuse("scatter", f"Incorrect input list size {len(inputs)}. Input list size should be {self._world}, same as size of the "
                              "process group.")
        require_dense("scatter", inputs)
        require_alike("scatter", inputs, memory.dtype, memory.shape)
        source = flat(inputs)
        return self._call("scatter", dtype, (source.data_ptr(), count * self._world), target, opts, (source, memory), outputs, copy,
                          root=root)

    def reduce_scatter(self, output_tensors, input_tensors, opts=None, op=None, timeout=None):
        outputs = _list(output_tensors)
        if input_tensors and isinstance(input_tensors[0], torch.Tensor):
            input_tensors = [input_tensors]
        if len(outputs) != 1 or len(input_tensors) != 1 or len(input_tensors[0]) != self._world:
            refuse("reduce_scatter", f"requires one output tensor, and a list with a list of {self._world} input tensors")
        inputs = list(input_tensors[0])
        require_dense("reduce_scatter", outputs + inputs)
        output = outputs[0]
        for index, given in enumerate(inputs):
            if given.dtype != output.dtype:
                refuse("reduce_scatter", f"invalid tensor type at index {index}: expected {output.dtype}, got {given.dtype}")
        if inputs[self._number].numel() != output.numel():
            refuse("reduce_scatter", f"invalid tensor size: the output has {output.numel()} elements, this rank's input "
                                     f"{inputs[self._number].numel()}")
        counts = [given.numel() for given in inputs]
        return self._reduce_scatter(output, flat(inputs), counts, opts, op, outputs)

    def reduce_scatter_single(self, output, input, opts=None):  # noqa: A002: torch's name
        require_dense("reduce_scatter_tensor", (output, input))
        if output.dtype != input.dtype:
            refuse("reduce_scatter_tensor", f"the output is {output.dtype}, the input {input.dtype}")
        if output.numel() * self._world != input.numel():
            refuse(
                "reduce_scatter_tensor",
                f"the input has {input.numel()} elements, not {self._world} times the {output.numel()} of the output",
            )
        return self._reduce_scatter(output, input.contiguous(), None, opts, None, [output])

    _reduce_scatter_base = reduce_scatter_single

    def _reduce_scatter(self, output, source, counts, opts, op, result):
        reduce_op = _option(opts, "reduceOp", ReduceOp.SUM) if op is None else op
        dtype = reduced_type("reduce_scatter", source)
        number = reduction("reduce_scatter", reduce_op)
        if is_scaled(reduce_op):
            source = source.clone()
            prescale(source, reduce_op)
        memory, copy = self._written(output)
        lists = {}
        op = "reduce_scatter"
        if counts is not None and len(set(counts)) > 1:
            op, lists = "reduce_scatter_v", {"counts": counts}
        return self._call(op, dtype, (source.data_ptr(), source.numel()), (memory.data_ptr(), memory.numel()), opts, (source, memory),
                          result, copy, reduce_op=number, **lists)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None):
        return self._together([self.reduce_scatter_single(output, given, opts) for output, given in zip(outputs, inputs)], list(outputs))

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # ---- all to all

    def all_to_all_single(self, output, input, output_split_sizes=(), input_split_sizes=(), opts=None):  # noqa: A002: torch's name
        require_dense("all_to_all_single", (output, input))
        if output.dtype != input.dtype:
            refuse("all_to_all_single", f"the output is {output.dtype}, the input {input.dtype}")
        if not (input.is_contiguous() and output.is_contiguous()):
            refuse("all_to_all_single", "Tensors must be contiguous: give it tensor.contiguous()", DistBackendValueError)
        input_counts = self._counts("all_to_all_single", "input", input, input_split_sizes)
        output_counts = self._counts("all_to_all_single", "output", output, output_split_sizes)
        return self._all_to_all(input, output, input_counts, output_counts, opts, [output], None)

    alltoall_base = all_to_all_single

    def _counts(self, operation, what, tensor, splits):
        """Returns the number of elements for each rank. `splits`: the number of rows for each rank; empty: equal shares of the rows. `what`
        names the tensor in messages."""
        rows = tensor.size(0) if tensor.dim() else 1
        if not splits:
            if rows % self._world:
                refuse(operation, f"the {what} has {rows} rows, which {self._world} ranks cannot share equally: give split sizes")
            return [tensor.numel() // self._world] * self._world
        if len(splits) != self._world:
            refuse(operation, f"Number of tensor splits not equal to group size: {len(splits)} splits for {self._world} ranks")
        if sum(splits) != rows:
            refuse(operation, f"Split sizes doesn't match total dim 0 size: {sum(splits)} of {rows} rows")
        row = tensor.numel() // rows if rows else 0
        return [split * row for split in splits]

    def alltoall(self, output_tensors, input_tensors, opts=None):
        outputs, inputs = _list(output_tensors), _list(input_tensors)
        if len(outputs) != self._world or len(inputs) != self._world:
            refuse("all_to_all", f"requires {self._world} input tensors and {self._world} output tensors, not {len(inputs)} and {len(outputs)}")
        require_dense("all_to_all", outputs + inputs)
        dtype = inputs[0].dtype
        for index, tensor in enumerate(inputs + outputs):
            if tensor.dtype != dtype:
                refuse("all_to_all", f"invalid tensor type at index {index % self._world}: expected {dtype}, got {tensor.dtype}")
        source = flat(inputs)
        whole = torch.empty(sum(output.numel() for output in outputs), dtype=dtype)
        return self._all_to_all(source, whole, [tensor.numel() for tensor in inputs], [tensor.numel() for tensor in outputs], opts, outputs,
                                lambda: spread(whole, outputs))

    def _all_to_all(self, source, target, input_counts, output_counts, opts, result, after):
        """Sends the elements of `source` to the ranks, `input_counts` to each, and fills `target` with `output_counts` from each."""
        dtype, count = elements(source)
        factor = count // source.numel() if source.numel() else 1  # the engine's elements in one of the tensor's
        places = (source.data_ptr(), count), (target.data_ptr(), elements(target)[1])
        # All ranks must make the same call, but each knows only its own counts. So even equal counts are passed to all_to_all_v.
        return self._call("all_to_all_v", dtype, *places, opts, (source, target), result, after,
                          counts=[number * factor for number in input_counts], receive_counts=[number * factor for number in output_counts])

    # ---- messages

    def send(self, tensors, dst, tag=0):
        (tensor,) = _list(tensors)
        require_dense("send", (tensor,))
        memory = tensor.contiguous()
        return self._message("send", self._group.send, memory, dst, tag, [tensor], None)

    def recv(self, tensors, src, tag=0):
        (tensor,) = _list(tensors)
        require_dense("recv", (tensor,))
        memory, copy = self._written(tensor)
        return self._message("recv" if src >= 0 else "recvAnySource", self._group.receive, memory, src, tag, [tensor], copy)

    def recv_anysource(self, tensors, tag=0):
        return self.recv(tensors, -1, tag)

    recvAnysource = recv_anysource

    def _message(self, name, start, memory, peer, tag, result, after):
        """Starts a message by `start`, a method of the engine's group, and returns its Work."""
        dtype, count = elements(memory)
        event = profiling.event(self.backend_name, name, result)
        try:
            operation = start(memory.data_ptr(), count, dtype, peer, tag % _TAGS, self._timeout_ms, memory)
        except Error as error:
            raise as_dist_error(error) from None
        return self._made(PacelineWork((operation,), result, after, event))

    # ---- barriers

    def barrier(self, opts=None):
        return self._call("barrier", 0, (0, 0), (0, 0), opts, None, [])

    def monitored_barrier(self, opts=None, wait_all_ranks=False):
        timeout = _option(opts, "timeout", opts)
        is_zero = timeout is not None and timeout == timedelta(0)
        monitored_barrier(self, 0 if is_zero else milliseconds(timeout) or self._timeout_ms, wait_all_ranks)

    # ---- blocks of calls

    def _together(self, works, result, event=None):
        """Returns one Work, with the given result, that completes when all `works` have completed."""
        operations = [operation for work in works for operation in work._operations]
        afters = [work._run_after for work in works if work._after is not None]

        def after():
            for run in afters:
                run()

        return PacelineWork(operations, result, after if afters else None, event)

    def start_coalescing(self, *_device):
        self._coalesced = []

    def end_coalescing(self, *_device):
        works, self._coalesced = self._coalesced or [], None
        return self._together(works, [tensor for work in works for tensor in work.result()])

    _start_coalescing = start_coalescing
    _end_coalescing = end_coalescing

    # ---- the group

    def getBackendName(self):
        return self.backend_name

    name = getBackendName

    def _set_sequence_number_for_group(self):
        """Does nothing: every rank counts its calls from 0 in any case."""

    def _get_sequence_number_for_group(self):
        return self._sequence

    @property
    def options(self):
        return self._options

    def check_every_call(self):
        """Makes the ranks compare their calls before every collective from now on (TORCH_DISTRIBUTED_DEBUG=DETAIL)."""
        self._checks_calls = True

    def set_timeout(self, timeout):
        self._timeout_ms = milliseconds(timeout)
        self._options._timeout = timeout

    _set_default_timeout = set_timeout

    def abort(self):
        """Ends the group's operations that are under way, on all ranks, with an error, and leaves the group."""
        if self._group.is_closed or self._process != os.getpid():
            return
        try:
            self._group.abort("the program aborted the group")
        except Error as error:
            raise as_dist_error(error) from None
        self._group.close()

    def shutdown(self):
        """Leaves the group. Operations under way fail."""
        self._group.close()

    close = shutdown

    @staticmethod
    def create_device(interface="", hostname="", lazy_init=None):
        """Does nothing: the engine chooses the network interface itself. Programs written for Gloo call this to choose it."""

    def _wait_for_pending_works(self):
        """Does nothing: a Work completes even if no thread waits for it."""


def is_scaled(reduce_op):
    """Returns whether a reduction multiplies its input by a factor before the input is sent (PREMUL_SUM)."""
    return getattr(reduce_op, "op", reduce_op) == ReduceOp.RedOpType.PREMUL_SUM
