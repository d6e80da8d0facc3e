/* A loader: a style sheet becomes a module that puts it into the page. */

module.exports = css => {
  const members = `{ textContent: ${JSON.stringify(css)} }`;
  return `document.head.append(Object.assign(document.createElement('style'), ${members}));`;
};
