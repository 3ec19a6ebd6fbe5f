"""Every method the slow and obvious way: a pair table, K copies of every record, a sort in every batch.

Written apart from ``fedsim.splitnn``, of which it only borrows the weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsim.splitnn.gates import AttentionMergeNetwork
from fedsim.splitnn.layers import FeatureTensors
from fedsim.splitnn.methods import AvgSim, FeatureSim, FedSim
from fedsim_lab.ablations import PerceptronMergeNetwork
from fedsim_lab.paper_networks import ConvolutionMergeNetwork


@dataclass
class SlowList:
    networks: list
    features: list[FeatureTensors]
    partner: Tensor  # (B, K), -1 for nobody
    similarity: Tensor  # (B, K, F), NaN where missing


def slow_scores(method, network, own, lists, generator=None):
    if isinstance(method, FedSim):
        return _fedsim(network, own, lists, generator)
    if isinstance(method, AvgSim):
        return _avgsim(network, own, lists)
    return _featuresim(network, own, lists) if isinstance(method, FeatureSim) else _one_partner(network, own, lists)


def _copies(features, k):
    return FeatureTensors(features.numbers.repeat_interleave(k, 0), features.codes.repeat_interleave(k, 0))


def _pair_cuts(entry):
    """The cut layers of every pair's partner, side by side: (B * K, all widths)."""
    rows = entry.partner.flatten()
    cuts = [
        network(features.take(rows.clamp(min=0)))
        for network, features in zip(entry.networks, entry.features, strict=True)
    ]
    return torch.cat(cuts, dim=1) * (rows >= 0).unsqueeze(1)


def _per_pair(aggregate, pairs, shape):
    return aggregate.second(F.relu(aggregate.first(torch.cat(pairs, dim=1)))).view(*shape, -1)


def _drop(inputs, share, generator):
    if generator is None or share == 0:
        return inputs
    drawn = torch.rand(inputs.shape, generator=generator)
    return torch.where(drawn >= share, inputs / (1 - share), torch.zeros_like(inputs))


def _fedsim(network, own, lists, generator):
    sorted_outputs, sorted_weights, matched = [], [], []
    for gates, entry in zip(network.lists, lists, strict=True):
        record = [network.local(_copies(own, entry.partner.shape[1]))] if gates.sees_primary else []
        pairs = [*record, _pair_cuts(entry)]
        inputs = _similarity_inputs(entry.similarity, gates.inputs)
        if gates.bins is not None:
            fields = entry.similarity.shape[2]
            pairs.append(gates.bins(inputs[..., :fields]).flatten(2).flatten(0, 1))
            pairs.append(inputs[..., fields:].flatten(0, 1))
        outputs = network.task.squash(_per_pair(gates.aggregate, pairs, entry.partner.shape))
        weights = gates.weigh(inputs)
        order = entry.similarity.nanmean(dim=2).argsort(dim=1, stable=True)
        weighted = torch.stack([torch.diag(w) @ o for w, o in zip(weights, outputs, strict=True)])
        sorted_outputs.append(torch.stack([rows[places] for rows, places in zip(weighted, order, strict=True)]))
        sorted_weights.append(weights.gather(1, order))
        matched += [] if gates.match is None else _matched(gates.match, entry, inputs)
    return _merge(network, own, sorted_outputs, sorted_weights, matched, generator).unsqueeze(1)


def _similarity_inputs(similarity, module):
    """Similarities with zeros for missing ones and, if there are several fields, a mark where one is missing."""
    missing = similarity.isnan()
    filled = torch.where(missing, torch.zeros_like(similarity), similarity)
    if similarity.shape[2] == 1:
        return filled
    return torch.cat([filled, missing * module.marked], dim=2)


def _matched(match, entry, inputs):
    """What the match is expected to send, and how likely there is none, record by record."""
    sent = _pair_cuts(entry).view(*entry.partner.shape, -1)
    means, none = [], []
    for row, similarity in enumerate(entry.similarity):
        odds = []
        for place, vector in enumerate(similarity):
            ratio = 0.0
            for field, value in enumerate(vector):
                if value.isnan():
                    continue
                within = torch.minimum(torch.maximum(value, match.least[field]), match.greatest[field])
                laws = [
                    torch.distributions.Normal(mean[field], variance[field].sqrt()).log_prob(within)
                    for mean, variance in (
                        (match.match_mean, match.match_variance),
                        (match.other_mean, match.other_variance),
                    )
                ]
                ratio = ratio + laws[0] - laws[1]
            correction = _perceptron(match.correct, inputs[row, place], None)[0]
            odds.append((match.trust.logarithm.exp() * (ratio + match.log_odds) + correction).exp())
        total = 1 + sum(odds)
        means.append(sum(odd / total * partner for odd, partner in zip(odds, sent[row], strict=True)))
        none.append(1 / total)
    return [torch.stack(means), torch.stack(none).unsqueeze(1)]


def _merge(network, own, outputs, weights, matched, generator):
    merge = network.merge
    if isinstance(merge, ConvolutionMergeNetwork):
        found = [_drop(part, merge.dropout.share, generator) for part in _convolved(merge, outputs)]
        found += [_drop(part, merge.dropout.share, generator) for part in matched]
        return _perceptron(merge.perceptron, torch.cat(found, dim=1), generator)
    if isinstance(merge, PerceptronMergeNetwork):
        return _perceptron(
            merge.perceptron, torch.cat([*(part.flatten(1) for part in outputs), *matched], dim=1), generator
        )
    if isinstance(merge, AttentionMergeNetwork):
        cut = network.local(own)
        found = [_summary(entry, part, cut) for entry, part in zip(merge.summaries, outputs, strict=True)]
        found = [_drop(part, merge.dropout.share, generator) for part in [*found, *matched]]
        return _perceptron(merge.perceptron, torch.cat([cut, *found], dim=1), generator)
    means = [
        sum(part[row].sum(dim=0) for part in outputs) / sum(weight[row].sum() for weight in weights)
        for row in range(len(outputs[0]))
    ]
    return network.task.score(torch.stack(means))


def _convolved(merge, outputs):
    for convolution, part in zip(merge.kernels, outputs, strict=True):
        kernel = convolution.kernel
        padding = (kernel.weight.shape[2] - 1, 0)
        yield F.relu(F.conv2d(part.unsqueeze(1), kernel.weight, kernel.bias, padding=padding)).flatten(1)


def _summary(entry, part, cut):
    rows = []
    kernel = entry.mix.weight.unflatten(1, (entry.taps, -1)).transpose(1, 2)  # (H, R, k)
    for outputs, query in zip(part, entry.query(cut).view(len(part), entry.heads, -1), strict=True):
        heads = [(outputs @ one / len(one) ** 0.5).softmax(dim=0) @ outputs for one in query]
        convolved = F.relu(F.conv1d(outputs.T, kernel, entry.mix.bias, padding="same")).T
        rows.append(torch.cat([*heads, outputs.mean(0), outputs.max(0).values, outputs[-1], convolved.flatten()]))
    return torch.stack(rows)


def _perceptron(perceptron, inputs, generator):
    outputs = perceptron.first(inputs)
    for layer in perceptron.others:
        outputs = layer(_drop(F.relu(outputs), perceptron.dropout.share, generator))
    return outputs


def _avgsim(network, own, lists):
    pairs = [
        _per_pair(
            aggregate, [network.local(_copies(own, entry.partner.shape[1])), _pair_cuts(entry)], entry.partner.shape
        )
        for aggregate, entry in zip(network.lists, lists, strict=True)
    ]
    scores, task = torch.cat(pairs, dim=1), network.task
    if type(task).__name__ in {"BinaryClassification", "BoundedRegression"}:
        return torch.logit(scores.sigmoid().mean(dim=1, keepdim=True))
    if type(task).__name__ == "MulticlassClassification":
        return scores.softmax(dim=2).mean(dim=1, keepdim=True).log()
    return scores.mean(dim=1, keepdim=True)


def _featuresim(network, own, lists):
    opinions = []
    for aggregate, module, entry in zip(network.lists, network.inputs, lists, strict=True):
        record = network.encode(_copies(own, entry.partner.shape[1]))
        per_pair = _similarity_inputs(entry.similarity, module).flatten(0, 1)
        missing = network.per_pair - per_pair.shape[1]
        inputs = torch.cat([record, per_pair, torch.zeros(len(record), missing)], dim=1)
        cut = _perceptron(network.perceptron, inputs, None)
        opinions.append(_per_pair(aggregate, [cut, _pair_cuts(entry)], entry.partner.shape))
    return torch.cat(opinions, dim=1)


def _one_partner(network, own, lists):
    """``lists`` hold one partner per record here."""
    parts = [network.own(own), *(_pair_cuts(entry) for entry in lists)]
    return _perceptron(network.perceptron, torch.cat(parts, dim=1), None).unsqueeze(1)
