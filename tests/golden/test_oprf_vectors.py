"""The test vectors of RFC 9497, appendix A.1: ristretto255-SHA512 in the modes OPRF and VOPRF."""

import pytest

from fedsim.linkage.direct import oprf

SEED, KEY_INFO = bytes.fromhex("a3" * 32), b"test key"
SHORT, LONG = "00", "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"
BLIND = "64d37aed22a27f5191de1c1d69fadb899d8862b58eb4220029e036ec4c1f6706"
OTHER_BLIND = "222a5e897cf59db8145db8d16e597e8facb80ae7d4e26d9881aa6f61d645fc0e"
BASE_KEY = "5ebcea5ee37023ccb9fc2d2019f9d7737be85591ae8652ffa9ef0f4d37063b0e"
VERIFIABLE_KEY = "e6f73f344b79b379f1a0dd37e07ff62e38d9f71345ce62ae3a9bc60b04ccd909"
PUBLIC_KEY = "c803e2cc6b05fc15064549b5920659ca4a77b2cca6f04f6b357009335476ad4e"
SHORT_OUTPUT = (
    "b58cfbe118e0cb94d79b5fd6a6dafb98764dff49c14e1770b566e42402da1a7d"
    "a4d8527693914139caee5bd03903af43a491351d23b430948dd50cde10d32b3c"
)
LONG_OUTPUT = (
    "8a9a2f3c7f085b65933594309041fc1898d42d0858e59f90814ae90571a6df60"
    "356f4610bf816f27afdd84f47719e480906d27ecd994985890e5f539e7ea74b6"
)
BASE_VECTORS = [
    (
        SHORT,
        "609a0ae68c15a3cf6903766461307e5c8bb2f95e7e6550e1ffa2dc99e412803c",
        "7ec6578ae5120958eb2db1745758ff379e77cb64fe77b0b2d8cc917ea0869c7e",
        "527759c3d9366f277d8c6020418d96bb393ba2afb20ff90df23fb7708264e2f3"
        "ab9135e3bd69955851de4b1f9fe8a0973396719b7912ba9ee8aa7d0b5e24bcf6",
    ),
    (
        LONG,
        "da27ef466870f5f15296299850aa088629945a17d1f5b7f5ff043f76b3c06418",
        "b4cbf5a4f1eeda5a63ce7b77c7d23f461db3fcab0dd28e4e17cecb5c90d02c25",
        "f4a74c9c592497375e796aa837e907b1a045d34306a749db9f34221f7e750cb4"
        "f2a6413a6bf6fa5e19ba6348eb673934a722a7ede2e7621306d18951e7cf2c73",
    ),
]
SHORT_BLINDED = "863f330cc1a1259ed5a5998a23acfd37fb4351a793a5b3c090b642ddc439b945"
SHORT_EVALUATED = "aa8fa048764d5623868679402ff6108d2521884fa138cd7f9c7669a9a014267e"
VERIFIABLE_VECTORS = [
    (
        [(SHORT, BLIND, SHORT_BLINDED, SHORT_EVALUATED, SHORT_OUTPUT)],
        OTHER_BLIND,
        "ddef93772692e535d1a53903db24367355cc2cc78de93b3be5a8ffcc6985dd06"
        "6d4346421d17bf5117a2a1ff0fcb2a759f58a539dfbe857a40bce4cf49ec600d",
    ),
    (
        [
            (
                LONG,
                BLIND,
                "cc0b2a350101881d8a4cba4c80241d74fb7dcbfde4a61fde2f91443c2bf9ef0c",
                "60a59a57208d48aca71e9e850d22674b611f752bed48b36f7a91b372bd7ad468",
                LONG_OUTPUT,
            )
        ],
        OTHER_BLIND,
        "401a0da6264f8cf45bb2f5264bc31e109155600babb3cd4e5af7d181a2c9dc0a"
        "67154fabf031fd936051dec80b0b6ae29c9503493dde7393b722eafdf5a50b02",
    ),
    (
        [
            (SHORT, BLIND, SHORT_BLINDED, SHORT_EVALUATED, SHORT_OUTPUT),
            (
                LONG,
                OTHER_BLIND,
                "90a0145ea9da29254c3a56be4fe185465ebb3bf2a1801f7124bbbadac751e654",
                "cc5ac221950a49ceaa73c8db41b82c20372a4c8d63e5dded2db920b7eee36a2a",
                LONG_OUTPUT,
            ),
        ],
        "419c4f4f5052c53c45f3da494d2b67b220d02118e0857cdbcf037f9ea84bbe0c",
        "cc203910175d786927eeb44ea847328047892ddf8590e723c37205cb74600b0a"
        "5ab5337c8eb4ceae0494c2cf89529dcf94572ed267473d567aeed6ab873dee08",
    ),
]


@pytest.mark.parametrize(("text", "blinded", "evaluated", "output"), BASE_VECTORS)
def test_the_base_mode_gives_the_vectors(text, blinded, evaluated, output):
    key = oprf.SecretKey.derive(SEED, KEY_INFO, oprf.BASE)
    inputs, blinds = [bytes.fromhex(text)], [bytes.fromhex(BLIND)]
    sent = oprf.blind(zip(inputs, blinds, strict=True), oprf.BASE)
    elements, _ = key.evaluate_blinded(sent, oprf.BASE)
    assert (key.scalar.hex(), sent[0].hex(), elements[0].hex()) == (BASE_KEY, blinded, evaluated)
    assert oprf.finalise(list(zip(inputs, blinds, elements, strict=True)))[0].hex() == output
    assert key.evaluate(inputs, oprf.BASE)[0].hex() == output


@pytest.mark.parametrize(("batch", "nonce", "proof"), VERIFIABLE_VECTORS)
def test_the_verifiable_mode_gives_the_vectors(batch, nonce, proof):
    key = oprf.SecretKey.derive(SEED, KEY_INFO)
    texts, scalars, blinded, evaluated, outputs = zip(*batch, strict=True)
    inputs, blinds = [bytes.fromhex(text) for text in texts], [bytes.fromhex(scalar) for scalar in scalars]
    sent = oprf.blind(zip(inputs, blinds, strict=True))
    evaluation = key.evaluate_blinded(sent, nonce=bytes.fromhex(nonce))
    assert (key.scalar.hex(), key.public.hex()) == (VERIFIABLE_KEY, PUBLIC_KEY)
    assert [element.hex() for element in sent] == list(blinded)
    assert [element.hex() for element in evaluation.elements] == list(evaluated)
    assert evaluation.proof.hex() == proof
    oprf.verify(key.public, sent, evaluation)
    assert [
        value.hex() for value in oprf.finalise(list(zip(inputs, blinds, evaluation.elements, strict=True)))
    ] == list(outputs)
    assert [value.hex() for value in key.evaluate(inputs)] == list(outputs)
