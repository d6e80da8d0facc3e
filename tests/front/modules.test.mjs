// The modules are also joined into one file for the widget: what that needs holds here.

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { posix } from 'node:path';
import { test } from 'node:test';

const FOLDER = new URL('../../monarch_nb/notebook/view/front/', import.meta.url);
const NAMES = readdirSync(FOLDER, { recursive: true }).filter(name => name.endsWith('.js'));
const SOURCES = new Map(NAMES.map(name => [name, readFileSync(new URL(name, FOLDER), 'utf8')]));

test('modules import named things of their neighbours only', () => {
  for (const [name, source] of SOURCES) {
    for (const [line] of source.matchAll(/^import[^;]*;/gm)) {
      const from = /^import \{[^}]*\} from '(\.\.?\/[\w/]+\.js)';$/.exec(line);
      assert.ok(from && SOURCES.has(posix.join(posix.dirname(name), from[1])), `${name}: ${line}`);
      assert.doesNotMatch(line, /\bas\b/, name);
    }
  }
});

test('names at the top of modules are unique, so that one file can hold them all', () => {
  const seen = new Map();
  for (const [name, source] of SOURCES) {
    for (const [, found] of source.matchAll(
      /^(?:export )?(?:async )?(?:function|class|const|let) (\w+)/gm
    )) {
      assert.ok(!seen.has(found), `${found} is in ${seen.get(found)} and ${name}`);
      seen.set(found, name);
    }
  }
});

test('only the widget has a default export, and nothing listens or is drawn at import', async () => {
  const defaults = NAMES.filter(name => /^export default/m.test(SOURCES.get(name)));
  assert.deepEqual(defaults, ['widget.js']);
  const widget = await import(new URL('widget.js', FOLDER)); // plain node has no document
  assert.equal(typeof widget.default.render, 'function');
});

test('no text becomes markup', () => {
  for (const [name, source] of SOURCES) {
    assert.doesNotMatch(
      source,
      /innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function/,
      name
    );
  }
});

test('every class begins with mnb-', () => {
  const css = readFileSync(new URL('mesh.css', FOLDER), 'utf8').replace(/\/\*[^]*?\*\//g, '');
  const foreign = [...css.matchAll(/\.(-?[a-z][\w-]*)(?=[^{}]*\{)/g)].map(([, name]) => name);
  assert.deepEqual(
    foreign.filter(name => !/^(mnb-|vscode-(light|dark)$)/.test(name)),
    []
  );
});
