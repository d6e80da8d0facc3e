/* The style sheets travel without their comments and spaces, the code without what browsers of today do not need. */

const { rspack } = require('@rspack/core');

module.exports = {
  module: {
    rules: [
      {
        test: /\.css$/,
        enforce: 'pre',
        loader: 'builtin:lightningcss-loader',
        options: { minify: true, targets: 'chrome 123' }
      }
    ]
  },
  optimization: {
    minimizer: [
      new rspack.SwcJsMinimizerRspackPlugin({
        extractComments: false,
        minimizerOptions: {
          ecma: 2022,
          module: true,
          compress: { ecma: 2022, passes: 4, unsafe_arrows: true, unsafe_methods: true, keep_fargs: false, pure_getters: true, hoist_props: true },
          format: { ecma: 2022, comments: false }
        }
      })
    ]
  }
};
