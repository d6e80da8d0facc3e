import js from '@eslint/js';
import globals from 'globals';
import ts from 'typescript-eslint';

export default ts.config(
  { ignores: ['**/lib/', 'monarch_nb/labextension/', '**/node_modules/', '.venv/', 'docs/', 'notebooks/'] },
  js.configs.recommended,
  { languageOptions: { globals: globals.browser } },
  {
    files: ['labextension/src/**/*.ts'],
    extends: [...ts.configs.strictTypeChecked, ...ts.configs.stylisticTypeChecked],
    languageOptions: { parserOptions: { projectService: true } },
    rules: { '@typescript-eslint/restrict-template-expressions': ['error', { allowNumber: true }] }
  },
  { files: ['tests/front/**', '**/*.cjs'], languageOptions: { globals: globals.node } }
);
