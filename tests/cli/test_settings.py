# SPDX-License-Identifier: Apache-2.0
from dataclasses import fields

import pytest

from sfumato.cli.settings import TrainSettings, keep, kept, read_config
from sfumato.errors import InvalidParameterError
from sfumato.training.models.recipes import Recipe, models_of, recipe


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "run.toml"
        path.write_text(text)
        return path

    return write


def test_flags_go_before_the_file_and_the_file_before_the_recipe(file):
    said = TrainSettings(epsilon=1.0)
    found = said.over(read_config(file('data = "digits"\nepsilon = 3\nclip_norm = 0.5'))).completed()
    assert (found.epsilon, found.clip_norm) == (1.0, 0.5)
    assert found.model == models_of("digits")[0]
    assert found.expected_batch_size == recipe("digits", "mlp").expected_batch_size


def test_zero_and_false_are_values():
    below = TrainSettings(momentum=0.9, per_layer=True)
    found = TrainSettings(momentum=0.0, per_layer=False).over(below)
    assert (found.momentum, found.per_layer) == (0.0, False)


def test_every_setting_of_a_recipe_is_a_setting():
    assert {field.name for field in fields(Recipe)} <= {field.name for field in fields(TrainSettings)}


def test_steps_take_the_place_of_the_recipes_epochs():
    found = TrainSettings(data="digits", steps=5).completed()
    assert (found.steps, found.epochs) == (5, None)


def test_adam_does_not_take_the_rate_of_sgd():
    found = TrainSettings(data="digits", optimizer="adam").completed()
    assert found.learning_rate == 0.01 and found.momentum is None
    assert TrainSettings(data="digits", optimizer="adam", learning_rate=0.2).completed().learning_rate == 0.2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("epsilom = 3", "unknown key 'epsilom' in .* Did you mean 'epsilon'"),
        ("noise-multiplier = 3", "Did you mean 'noise_multiplier'"),
        ("max_grad_norm = 3", "Did you mean 'clip_norm'|Known are"),
        ("zzz = 3", "Known are: data, private"),
        ('epsilon = "three"', "epsilon in .* must be a number, but 'three' was given"),
        ("epsilon = true", "epsilon in .* must be a number, but True was given"),
        ("steps = 1.5", "steps in .* must be a whole number"),
        ("model = 3", "model in .* must be text in quotes"),
        ("per_layer = 1", "per_layer in .* must be true or false"),
        ("[train]\nepsilon = 3", "unknown key 'train'"),
        ("epsilon = ", "is not TOML"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_what_to_change(file, text, says):
    with pytest.raises(InvalidParameterError, match=says):
        read_config(file(text))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InvalidParameterError, match="cannot be read"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidParameterError, match="cannot be read"):
        read_config(tmp_path / "bytes.toml")


def test_settings_without_data_are_refused():
    with pytest.raises(InvalidParameterError, match="pass what to train on"):
        TrainSettings(epsilon=3.0).completed()


def test_a_folder_keeps_settings_as_they_were(tmp_path):
    settings = TrainSettings(data="digits", epsilon=3.0, seed=0, per_layer=False)
    keep(settings, tmp_path / "run")
    assert kept(tmp_path / "run") == settings
    assert kept(tmp_path / "other") == TrainSettings()
    for damaged in ("{", "", "[" * 100_000):
        (tmp_path / "run" / "settings.json").write_text(damaged)
        with pytest.raises(InvalidParameterError, match="cannot be read"):
            kept(tmp_path / "run")
    for other in ("[]", "3", "null", '"digits"'):
        (tmp_path / "run" / "settings.json").write_text(other)
        with pytest.raises(InvalidParameterError, match="settings by name"):
            kept(tmp_path / "run")
