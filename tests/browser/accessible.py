"""What is ours of a page, by the rules of WCAG 2.1 A and AA: names, roles, keys, contrast.

The rules are axe-core's, an npm package for development that no user gets.
"""

from typing import Any

from playwright.sync_api import Page

from tests.source import ROOT

AXE = ROOT / "node_modules/axe-core/axe.min.js"
OURS = ".mnb-root, .mnb-palette"
"""Views, and whatever of the extension stands somewhere: the panel, tabs, tags, outputs."""

RUN = """async selector => {
    const shown = [...document.querySelectorAll(selector)].filter(el => el.checkVisibility());
    const { violations, passes } = await axe.run(
        { include: shown },
        {
            runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"],
            resultTypes: ["violations"],
            preload: false,
        }
    );
    const wrong = violations.flatMap(({ id, help, nodes }) =>
        nodes.map(({ html, target, failureSummary }) => ({
            rule: `${id}: ${help}`, html: html.slice(0, 300), at: target.join(" "), failureSummary
        }))
    );
    return { wrong, rules: passes.map(({ id }) => id) };
}"""


def check(page: Page, selector: str = OURS) -> None:
    """Fail with each node that breaks a rule, and with what mends it."""
    if not page.evaluate("() => 'axe' in window"):
        page.add_script_tag(path=AXE)
    found = page.evaluate(RUN, selector)
    assert found["rules"], "nothing was looked at"
    assert not found["wrong"], "\n\n".join(map(_sentence, found["wrong"]))


def _sentence(one: dict[str, Any]) -> str:
    return f"{one['rule']}\n{one['at']}\n{one['html']}\n{one['failureSummary']}"
